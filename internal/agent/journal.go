// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"sync"
	"time"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/container"
	"github.com/sockhealth/sockhealth/internal/loader"
)

// EntryKind says what an Entry is about.
type EntryKind string

// Kinds.
const (
	EntryVerdict EntryKind = "verdict" // a judgement
	EntryEnd     EntryKind = "end"     // the kernel ended a connection
	EntryStall   EntryKind = "stall"   // the first retransmission timeout of a stall
)

// Entry is one thing that happened.
type Entry struct {
	// Seq counts from 1 without gaps since the agent started.
	Seq    uint64
	Time   time.Time // wall clock, for people
	Kind   EntryKind
	Policy string
	ID     conn.ID
	// Container is where the socket lives, as far as it is known.
	Container container.ID
	// Result, Reporter, UID and PID belong to a verdict; UID and PID are 0
	// where no caller asked.
	Result   *Result
	Reporter string
	UID      uint32
	PID      int32
	// Event belongs to an end or a stall.
	Event *loader.Event
}

const (
	// journalSize is how many entries are kept for who subscribes later.
	journalSize = 1024
	// subscriberSize is how far a subscriber may lag behind.
	subscriberSize = 1024
)

// journal keeps the last entries and passes new ones on. The zero value is
// ready. It never waits for a subscriber.
type journal struct {
	mu   sync.Mutex
	seq  uint64
	ring []Entry // at seq-1 mod journalSize
	subs map[*subscriber]bool
}

type subscriber struct {
	ch chan Entry
}

// add numbers an entry and passes it on.
func (j *journal) add(e Entry) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.seq++
	e.Seq = j.seq
	if len(j.ring) < journalSize {
		j.ring = append(j.ring, e)
	} else {
		j.ring[(j.seq-1)%journalSize] = e
	}
	for s := range j.subs {
		s.send(e)
	}
}

// send drops the oldest where the subscriber lags. The journal's lock is held,
// so that nobody else sends.
func (s *subscriber) send(e Entry) {
	for {
		select {
		case s.ch <- e:
			return
		default:
		}
		select {
		case <-s.ch:
		default:
		}
	}
}

// Subscribe streams the entries after the one numbered since, as far as they
// are kept, and then the new ones, until cancel, which closes the channel. A
// reader that lags loses the oldest, and sees the gap in their numbers.
func (a *Agent) Subscribe(since uint64) (entries <-chan Entry, cancel func()) {
	j := &a.journal
	j.mu.Lock()
	defer j.mu.Unlock()
	s := &subscriber{ch: make(chan Entry, subscriberSize)}
	for seq := max(since+1, j.seq-min(j.seq, uint64(len(j.ring)))+1); seq <= j.seq; seq++ {
		s.send(j.ring[(seq-1)%journalSize])
	}
	if j.subs == nil {
		j.subs = make(map[*subscriber]bool)
	}
	j.subs[s] = true
	return s.ch, sync.OnceFunc(func() {
		j.mu.Lock()
		defer j.mu.Unlock()
		delete(j.subs, s)
		close(s.ch)
	})
}
