package redistest

import (
	"bytes"
	"errors"
	"math"
	"strconv"
)

// errNotRESP says that bytes cannot be the start of a RESP value.
var errNotRESP = errors.New("redistest: not RESP")

// frameLen returns the length of the first RESP2 or RESP3 value in b, a
// leading attribute included, or 0 when b ends before the value does.
func frameLen(b []byte) (int, error) {
	pos := 0
	for left := 1; left > 0; left-- {
		line, next := headerLine(b, pos)
		if next == 0 {
			return 0, nil
		}
		pos = next
		if len(line) == 0 {
			return 0, errNotRESP
		}
		switch line[0] {
		case '+', '-', ':', '_', ',', '#', '(':
		case '$', '=', '!':
			n, err := headerCount(line)
			if err != nil {
				return 0, err
			}
			if n >= 0 {
				pos += n + 2
			}
			if pos > len(b) {
				return 0, nil
			}
		case '*', '~', '>', '%', '|':
			n, err := headerCount(line)
			if err != nil {
				return 0, err
			}
			switch line[0] {
			case '%':
				n *= 2
			case '|':
				n = 2*n + 1 // the value that the attribute is about
			}
			left += max(n, 0)
		default:
			return 0, errNotRESP
		}
	}
	return pos, nil
}

// headerLine returns the line at pos without its end and the position after
// it, which is 0 when the line is not complete.
func headerLine(b []byte, pos int) (line []byte, next int) {
	i := bytes.Index(b[pos:], []byte("\r\n"))
	if i < 0 {
		return nil, 0
	}
	return b[pos : pos+i], pos + i + 2
}

func headerCount(line []byte) (int, error) {
	n, err := strconv.Atoi(string(line[1:]))
	if err != nil || n < -1 || n > math.MaxInt32 {
		return 0, errNotRESP
	}
	return n, nil
}

// frameStrings returns the elements of an array or push frame as text. A
// nested element ends it; a nil is "".
func frameStrings(frame []byte) []string {
	line, pos := headerLine(frame, 0)
	if pos == 0 || len(line) == 0 || (line[0] != '*' && line[0] != '>') {
		return nil
	}
	n, err := headerCount(line)
	if err != nil {
		return nil
	}
	var texts []string
	for range n {
		line, next := headerLine(frame, pos)
		if next == 0 || len(line) == 0 {
			return texts
		}
		pos = next
		switch line[0] {
		case '$':
			size, err := headerCount(line)
			if err != nil {
				return texts
			}
			if size < 0 {
				texts = append(texts, "")
				continue
			}
			if pos+size+2 > len(frame) {
				return texts
			}
			texts = append(texts, string(frame[pos:pos+size]))
			pos += size + 2
		case '*', '~', '>', '%', '|', '=', '!':
			return texts
		default:
			texts = append(texts, string(line[1:]))
		}
	}
	return texts
}

// splitter cuts a byte stream into RESP frames.
type splitter struct {
	buf []byte
}

func (s *splitter) feed(p []byte) { s.buf = append(s.buf, p...) }

// next returns the next whole frame. Bytes that are not RESP come out as one
// frame of everything there is, so that a proxy hands them on unchanged.
func (s *splitter) next() (frame []byte, ok bool) {
	if len(s.buf) == 0 {
		return nil, false
	}
	n, err := frameLen(s.buf)
	if err != nil {
		n = len(s.buf)
	}
	if n == 0 {
		return nil, false
	}
	frame, s.buf = s.buf[:n:n], s.buf[n:]
	return frame, true
}
