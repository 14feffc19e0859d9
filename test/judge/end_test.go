// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/sockhealth/sockhealth/internal/conn"
)

// end is one end of a connection. Both ends say the same endless text, so that
// whoever reads knows what must come.
type end struct {
	*net.TCPConn
	said int // bytes; of the play

	moved chan struct{} // something has changed
	done  chan struct{} // it has ended; closed
	mu    sync.Mutex
	got   int           // bytes
	wrong bool          // they were not the text
	err   error         // how it ended, io.EOF for the peer's FIN
	at    time.Duration // when
	send  error         // of send
}

func newEnd(c *net.TCPConn) *end {
	return &end{TCPConn: c, moved: make(chan struct{}, 1), done: make(chan struct{})}
}

// letter is the text's n-th.
func letter(n int) byte { return byte(n % 251) }

func text(from, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = letter(from + i)
	}
	return b
}

// listen reads all that comes, until the end: at most so many bytes at a time, and
// with a pause after each.
func (e *end) listen(most int, pause time.Duration) {
	go func() {
		for buf := make([]byte, most); ; {
			n, err := e.Read(buf)
			e.took(buf[:n], err)
			if err != nil {
				close(e.done)
				return
			}
			if pause > 0 {
				time.Sleep(pause)
			}
		}
	}()
}

func (e *end) took(b []byte, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i, c := range b {
		e.wrong = e.wrong || c != letter(e.got+i)
	}
	e.got += len(b)
	if err != nil {
		e.err, e.at = err, conn.Now()
	}
	select {
	case e.moved <- struct{}{}:
	default:
	}
}

// say writes the next n bytes of the text.
func (e *end) say(n int) error {
	b := text(e.said, n)
	e.said += n
	_, err := e.Write(b)
	return err
}

// sends is say for more than the peer takes at once: it returns at once.
func (e *end) sends(n int) {
	b := text(e.said, n)
	e.said += n
	go func() {
		_, err := e.Write(b)
		e.mu.Lock()
		defer e.mu.Unlock()
		e.send = err
	}()
}

// streams says ever more of the text, until stop is called, which returns when all of it
// is written.
func (e *end) streams() (stop func()) {
	enough, over := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(over)
		for {
			select {
			case <-enough:
				return
			default:
			}
			if err := e.say(64 << 10); err != nil {
				e.mu.Lock()
				defer e.mu.Unlock()
				e.send = err
				return
			}
		}
	}()
	return func() {
		close(enough)
		<-over
	}
}

// ended returns how the end has ended, if it has. The kernel tells an error once: where
// send heard of it, whoever reads gets the end of the text.
func (e *end) ended() (err error, at time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.err == io.EOF && e.send != nil {
		return e.send, e.at
	}
	return e.err, e.at
}

// heard waits until it has got so many bytes, and all of them right.
func (e *end) heard(t testing.TB, bytes int) {
	t.Helper()
	for timer := time.NewTimer(late); ; {
		e.mu.Lock()
		got, wrong, err := e.got, e.wrong, e.err
		e.mu.Unlock()
		switch {
		case wrong || got > bytes:
			t.Fatalf("%s got other bytes than were sent", e)
		case got == bytes:
			return
		case err != nil:
			t.Fatalf("%s got %d of %d bytes, then %v", e, got, bytes, err)
		}
		select {
		case <-e.moved:
		case <-timer.C:
			t.Fatalf("%s got %d of %d bytes in %s", e, got, bytes, late)
		}
	}
}

func (e *end) String() string { return fmt.Sprintf("the end at %s", e.LocalAddr()) }
