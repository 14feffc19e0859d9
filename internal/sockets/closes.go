// SPDX-License-Identifier: Apache-2.0

package sockets

import (
	"errors"
	"sync"
	"time"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/loader"
)

// maxCloses bounds the closes of one namespace that wait for a walk. One socket
// that stays locked holds up all of them for as long.
const maxCloses = 4096

// closeWithin is for how long what condemned a socket stands. Whoever asked for
// the close has given up by then (package agent waits for two seconds).
const closeWithin = 1500 * time.Millisecond

// errCloses says that so many closes wait.
var errCloses = errors.New("too many closes wait for a walk over this namespace, one socket of which seems to be locked")

// closes brings the closes by walk of one namespace one behind the other, since
// one walk must not meet what another names, and lets those that wait together
// share one: a walk visits every socket, however few are named. Who waits holds
// no thread. The zero value is ready.
type closes struct {
	mu     sync.Mutex
	queues map[uint32]*queue // by namespace; gone when nobody is in it
}

// queue is what is to be closed in one namespace.
type queue struct {
	walk    sync.Mutex // held while one walks
	inside  int        // callers of join; held by closes.mu
	waiting []*wish    // not taken by a walk yet; held by closes.mu
}

// wish is one socket to close. err is settled when done; both are held by
// queue.walk.
type wish struct {
	loader.Condemned
	done bool
	err  error
}

// join has a socket closed by the next walk and returns what came of it. walk
// closes several, no two of one cookie, and returns one result for each. One
// that waited for too long is for the walk to leave alone (loader.ErrLate).
func (c *closes) join(ns uint32, id conn.ID, walk func([]loader.Condemned) []error) error {
	w := &wish{Condemned: loader.Condemned{ID: id, Until: conn.Now() + closeWithin}}
	q := c.enter(ns, w)
	if q == nil {
		return errCloses
	}
	defer c.leave(ns, q)
	q.walk.Lock()
	defer q.walk.Unlock()
	if w.done { // by who waited before
		return w.err
	}
	batch := c.take(q, w)
	named := make([]loader.Condemned, len(batch))
	for i := range batch {
		named[i] = batch[i].Condemned
	}
	for i, err := range walk(named) {
		batch[i].done, batch[i].err = true, err
	}
	return w.err
}

// enter puts a wish into the queue of its namespace; nil: that is full.
func (c *closes) enter(ns uint32, w *wish) *queue {
	c.mu.Lock()
	defer c.mu.Unlock()
	q := c.queues[ns]
	if q == nil {
		q = new(queue)
		if c.queues == nil {
			c.queues = make(map[uint32]*queue)
		}
		c.queues[ns] = q
	}
	if q.inside >= maxCloses {
		return nil
	}
	q.inside++
	q.waiting = append(q.waiting, w)
	return q
}

// take takes the wishes of the next walk out of the queue: w, and each other
// that waits for another cookie than those before it.
func (c *closes) take(q *queue, w *wish) []*wish {
	c.mu.Lock()
	defer c.mu.Unlock()
	batch := []*wish{w}
	named := map[uint64]bool{w.Cookie: true}
	var left []*wish
	for _, one := range q.waiting {
		switch {
		case one == w:
		case named[one.Cookie]:
			left = append(left, one)
		default:
			named[one.Cookie] = true
			batch = append(batch, one)
		}
	}
	q.waiting = left
	return batch
}

// leave forgets the queue behind the last one inside.
func (c *closes) leave(ns uint32, q *queue) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if q.inside--; q.inside == 0 {
		delete(c.queues, ns)
	}
}
