// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"encoding/json"
	"errors"
	"net"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// channel is a client's connection to a peer, which carries any number of calls
// at a time.
type channel struct {
	conn net.Conn
	done chan struct{} // closed when nothing is read any more

	mu      sync.Mutex // guards what follows, and the writing
	last    int
	waiting map[int]chan<- callAnswer
	err     error // why nothing is read any more
}

func newChannel(c net.Conn) *channel {
	ch := &channel{conn: c, done: make(chan struct{}), waiting: make(map[int]chan<- callAnswer)}
	go ch.read()
	return ch
}

func (ch *channel) local() string { return ch.conn.LocalAddr().String() }
func (ch *channel) peer() string  { return ch.conn.RemoteAddr().String() }

// close ends the connection and every call on it.
func (ch *channel) close() {
	_ = ch.conn.Close() // of no consequence to anybody
	<-ch.done
}

// send writes a call. Its answer comes on the channel returned, or its error,
// in the kernel's own words, where the connection ends first.
func (ch *channel) send(r callRequest) <-chan callAnswer {
	answer := make(chan callAnswer, 1)
	ch.mu.Lock()
	defer ch.mu.Unlock()
	ch.last++
	r.ID, r.Body = ch.last, callBody
	err := ch.err
	if err == nil {
		err = writeLine(ch.conn, r)
	}
	if err != nil {
		answer <- callAnswer{Err: inWords(err)}
		return answer
	}
	ch.waiting[r.ID] = answer
	return answer
}

// read hands over the answers until the connection ends.
func (ch *channel) read() {
	defer close(ch.done)
	for in := json.NewDecoder(ch.conn); ; {
		var a callAnswer
		err := in.Decode(&a)
		ch.mu.Lock()
		if err != nil {
			ch.err = err
			for _, w := range ch.waiting {
				w <- callAnswer{Err: inWords(err)}
			}
			ch.waiting = nil
			ch.mu.Unlock()
			return
		}
		if w := ch.waiting[a.ID]; w != nil {
			w <- a
			delete(ch.waiting, a.ID)
		}
		ch.mu.Unlock()
	}
}

// inWords names the kernel's errors as its header does.
func inWords(err error) string {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return unix.ErrnoName(errno)
	}
	return err.Error()
}
