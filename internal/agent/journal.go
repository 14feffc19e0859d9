// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"sort"
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

// EntryKinds lists them.
func EntryKinds() []EntryKind { return []EntryKind{EntryVerdict, EntryEnd, EntryStall} }

// Entry is one thing that happened.
type Entry struct {
	// Seq counts from 1 without gaps since the agent started.
	Seq uint64
	// Time is when it happened, Noted when the agent heard of it: the wall clock,
	// for people, and the monotonic one for ages.
	Time, Noted time.Time

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

// JournalSize is how many entries are kept, and besides them as many of the
// verdicts that something was done about.
const JournalSize = 1024

// journal keeps the last entries. The zero value is ready. Verdicts that something
// was done about have a ring of their own, so that whoever asks often, or a storm of
// ends, does not drive them out.
//
// Readers keep a number and ask for the entry after it: however many there are, and
// however slow, what is kept stays the same.
type journal struct {
	mu     sync.Mutex
	seq    uint64
	acted  ring
	others ring
	more   chan struct{} // closed by the next entry; nil: nobody waits
}

// ring keeps the last entries of a journal, by rising number.
type ring struct {
	entries []Entry
	oldest  int // index; 0 until the ring is full
}

func (r *ring) add(e Entry) {
	if len(r.entries) < JournalSize {
		r.entries = append(r.entries, e)
		return
	}
	r.entries[r.oldest] = e
	r.oldest = (r.oldest + 1) % JournalSize
}

// after returns the first entry whose number is above since, nil: there is none.
func (r *ring) after(since uint64) *Entry {
	n := len(r.entries)
	at := func(i int) *Entry { return &r.entries[(r.oldest+i)%n] }
	i := sort.Search(n, func(i int) bool { return at(i).Seq > since })
	if i == n {
		return nil
	}
	return at(i)
}

// add numbers an entry, wakes who waits for it, and returns the number.
func (j *journal) add(e Entry) uint64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.seq++
	e.Seq = j.seq
	if e.Result != nil && e.Result.Action != ActionNone {
		j.acted.add(e)
	} else {
		j.others.add(e)
	}
	if j.more != nil {
		close(j.more)
		j.more = nil
	}
	return e.Seq
}

// After returns the first entry kept whose number is above since; where there is
// none yet its Seq is 0. last is the number of the newest there is, and more is
// closed by the one that comes next. What is no longer kept is missing in the
// numbers.
func (a *Agent) After(since uint64) (e Entry, last uint64, more <-chan struct{}) {
	j := &a.journal
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.more == nil {
		j.more = make(chan struct{})
	}
	first, other := j.acted.after(since), j.others.after(since)
	if first == nil || other != nil && other.Seq < first.Seq {
		first = other
	}
	if first != nil {
		e = *first
	}
	return e, j.seq, j.more
}
