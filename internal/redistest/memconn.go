package redistest

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// memPipe returns the two ends of an in-memory connection with unlimited
// buffers: a write never blocks, and a read that waits is durably blocked in
// the sense of testing/synctest. Both ends must be made in the bubble that
// uses them.
func memPipe() (a, b *memConn) {
	ab, ba := newStream(), newStream()
	return &memConn{in: ba, out: ab}, &memConn{in: ab, out: ba}
}

// memConn is one end of a memPipe. Its errors look like a socket's: timeouts
// are os.ErrDeadlineExceeded, use after Close is net.ErrClosed, and a write to
// a peer that is gone is EPIPE. Safe for concurrent use.
type memConn struct {
	in, out *stream
}

func (c *memConn) Read(p []byte) (int, error) {
	n, err := c.in.read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = memError("read", err)
	}
	return n, err
}

func (c *memConn) Write(p []byte) (int, error) {
	n, err := c.out.write(p)
	if err != nil {
		err = memError("write", err)
	}
	return n, err
}

// Close ends both directions. The peer still reads what was written before,
// then io.EOF; reads that block on this end return net.ErrClosed.
func (c *memConn) Close() error {
	c.in.closeReader()
	c.out.closeWriter()
	return nil
}

func (c *memConn) SetDeadline(t time.Time) error {
	c.in.setReadDeadline(t)
	c.out.setWriteDeadline(t)
	return nil
}

func (c *memConn) SetReadDeadline(t time.Time) error {
	c.in.setReadDeadline(t)
	return nil
}

func (c *memConn) SetWriteDeadline(t time.Time) error {
	c.out.setWriteDeadline(t)
	return nil
}

func (c *memConn) LocalAddr() net.Addr  { return memAddr{} }
func (c *memConn) RemoteAddr() net.Addr { return memAddr{} }

// setFrozen makes reads of this end wait, whatever has arrived, until it is
// called with false. Only Close and a deadline end such a read.
func (c *memConn) setFrozen(frozen bool) { c.in.setFrozen(frozen) }

type memAddr struct{}

func (memAddr) Network() string { return "memory" }
func (memAddr) String() string  { return "memory" }

func memError(op string, err error) error {
	return &net.OpError{Op: op, Net: "memory", Addr: memAddr{}, Err: err}
}

// stream is one direction of a connection.
type stream struct {
	mu      sync.Mutex
	changed sync.Cond // something below is different; L is &mu

	// guarded by mu
	buf          []byte
	writerClosed bool
	readerClosed bool
	frozen       bool

	readExpired   bool
	readDeadline  int // generation: a timer of an earlier one is void
	readTimer     *time.Timer
	writeDeadline time.Time
}

func newStream() *stream {
	s := &stream{}
	s.changed.L = &s.mu
	return s
}

func (s *stream) read(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		switch {
		case s.readerClosed:
			return 0, net.ErrClosed
		case s.readExpired:
			return 0, os.ErrDeadlineExceeded
		case s.frozen:
		case len(s.buf) > 0:
			n := copy(p, s.buf)
			if s.buf = s.buf[n:]; len(s.buf) == 0 {
				s.buf = nil
			}
			return n, nil
		case s.writerClosed:
			return 0, io.EOF
		}
		if len(p) == 0 {
			return 0, nil
		}
		s.changed.Wait()
	}
}

func (s *stream) write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.writerClosed:
		return 0, net.ErrClosed
	case !s.writeDeadline.IsZero() && !time.Now().Before(s.writeDeadline):
		return 0, os.ErrDeadlineExceeded
	case s.readerClosed:
		return 0, os.NewSyscallError("write", syscall.EPIPE)
	}
	s.buf = append(s.buf, p...)
	s.changed.Broadcast()
	return len(p), nil
}

func (s *stream) closeWriter() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writerClosed = true
	s.changed.Broadcast()
}

func (s *stream) closeReader() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.readerClosed = true
	s.buf = nil
	s.stopTimerLocked()
	s.changed.Broadcast()
}

func (s *stream) setFrozen(frozen bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.frozen = frozen
	s.changed.Broadcast()
}

func (s *stream) setReadDeadline(t time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopTimerLocked()
	s.readExpired = false
	if t.IsZero() || s.readerClosed {
		return
	}
	wait := time.Until(t)
	if wait <= 0 {
		s.readExpired = true
		s.changed.Broadcast()
		return
	}
	generation := s.readDeadline
	s.readTimer = time.AfterFunc(wait, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.readDeadline == generation {
			s.readExpired = true
			s.changed.Broadcast()
		}
	})
}

func (s *stream) setWriteDeadline(t time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writeDeadline = t
}

func (s *stream) stopTimerLocked() {
	s.readDeadline++
	if s.readTimer != nil {
		s.readTimer.Stop()
		s.readTimer = nil
	}
}
