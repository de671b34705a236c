package redistest

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

func TestMemConnDeliversWhatWasWrittenBeforeClose(t *testing.T) {
	a, b := memPipe()
	big := bytes.Repeat([]byte("0123456789"), 100_000)
	if n, err := a.Write(big); n != len(big) || err != nil {
		t.Fatalf("write: %d, %v", n, err)
	}
	_ = a.Close()
	got, err := io.ReadAll(b)
	if err != nil || !bytes.Equal(got, big) {
		t.Errorf("read %d bytes, %v", len(got), err)
	}
	if _, err := b.Write([]byte("x")); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("write to a closed peer: %v, want EPIPE", err)
	}
	if _, err := a.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
		t.Errorf("write after close: %v, want net.ErrClosed", err)
	}
	if _, err := a.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("read after close: %v, want net.ErrClosed", err)
	}
}

func TestMemConnReadEndsAtItsDeadlineToTheNanosecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := memPipe()
		defer a.Close()
		defer b.Close()
		start := time.Now()
		_ = a.SetReadDeadline(start.Add(time.Hour))
		go func() {
			time.Sleep(time.Second)
			_ = a.SetReadDeadline(start.Add(3 * time.Second)) // while the read waits
		}()
		_, err := a.Read(make([]byte, 1))
		var timeout net.Error
		if !errors.Is(err, os.ErrDeadlineExceeded) || !errors.As(err, &timeout) || !timeout.Timeout() {
			t.Errorf("read: %v", err)
		}
		if took := time.Since(start); took != 3*time.Second {
			t.Errorf("read took %v, want 3s", took)
		}
		if _, err := a.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("second read: %v", err)
		}
		_ = a.SetDeadline(start)
		if _, err := a.Write([]byte("x")); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("write after its deadline: %v", err)
		}
		_ = a.SetDeadline(time.Time{})
		_, _ = b.Write([]byte("y"))
		if n, err := a.Read(make([]byte, 1)); n != 1 || err != nil {
			t.Errorf("read without deadline: %d, %v", n, err)
		}
	})
}

func TestMemConnCloseEndsABlockedRead(t *testing.T) {
	for _, frozen := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			a, _ := memPipe()
			a.setFrozen(frozen)
			done := make(chan error)
			go func() {
				_, err := a.Read(make([]byte, 1))
				done <- err
			}()
			synctest.Wait()
			_ = a.Close()
			if err := <-done; !errors.Is(err, net.ErrClosed) {
				t.Errorf("frozen %v: read: %v", frozen, err)
			}
		})
	}
}

func TestFrozenMemConnKeepsBytesForLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := memPipe()
		defer a.Close()
		b.setFrozen(true)
		_, _ = a.Write([]byte("later"))
		_ = a.Close()
		_ = b.SetReadDeadline(time.Now().Add(time.Second))
		if _, err := b.Read(make([]byte, 8)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("frozen read: %v", err)
		}
		_ = b.SetReadDeadline(time.Time{})
		b.setFrozen(false)
		if got, err := io.ReadAll(b); string(got) != "later" || err != nil {
			t.Errorf("after thaw: %q, %v", got, err)
		}
	})
}
