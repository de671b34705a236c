package redistest

import (
	"slices"
	"strings"
	"testing"
)

func TestFramesAreCutAtTheirEndHoweverTheyArrive(t *testing.T) {
	frames := []string{
		"+OK\r\n",
		"-ERR no\r\n",
		":12\r\n",
		"$5\r\na\r\nb\n\r\n",
		"$-1\r\n",
		"*-1\r\n",
		"*0\r\n",
		"*2\r\n*2\r\n:1\r\n$0\r\n\r\n+x\r\n",
		"%2\r\n+a\r\n:1\r\n+b\r\n*1\r\n:2\r\n",
		"~1\r\n#t\r\n",
		">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\np\r\n",
		"|1\r\n+ttl\r\n:3\r\n*1\r\n,1.5\r\n",
		"_\r\n",
		"(123\r\n",
		"=7\r\ntxt:abc\r\n",
		"!3\r\nERR\r\n",
	}
	stream := []byte(strings.Join(frames, ""))
	for size := 1; size <= len(stream); size++ {
		var s splitter
		var got []string
		for chunk := range slices.Chunk(stream, size) {
			s.feed(chunk)
			for frame, ok := s.next(); ok; frame, ok = s.next() {
				got = append(got, string(frame))
			}
		}
		if !slices.Equal(got, frames) {
			t.Fatalf("in pieces of %d: %q", size, got)
		}
	}
}

func TestBytesThatAreNotRESPPassWhole(t *testing.T) {
	for _, text := range []string{"GET / HTTP/1.1\r\n\r\n", "*x\r\n", "\r\n\r\n", "$-7\r\n"} {
		var s splitter
		s.feed([]byte(text))
		if frame, ok := s.next(); !ok || string(frame) != text {
			t.Errorf("%q: %q, %v", text, frame, ok)
		}
	}
}

func FuzzFrameLenStaysWithinItsInput(f *testing.F) {
	f.Add([]byte("*2\r\n$3\r\nGET\r\n$1\r\nk\r\n"))
	f.Add([]byte("|1\r\n+a\r\n:1\r\n%1\r\n+b\r\n_\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		n, err := frameLen(b)
		if n < 0 || n > len(b) {
			t.Fatalf("%d of %d, %v", n, len(b), err)
		}
		frameStrings(b)
		if n > 0 {
			classify(b[:n], subscriptions{"": {"c": {}}})
		}
	})
}
