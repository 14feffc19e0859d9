// SPDX-License-Identifier: Apache-2.0

package api

import (
	"sync"

	"github.com/sockhealth/sockhealth/internal/agent"
)

// journal is an EventSource that keeps the last entries, as the agent does.
type journal struct {
	mu   sync.Mutex
	seq  uint64
	kept []agent.Entry
	more chan struct{}
	last uint64 // asked for
}

// keeps is how many a journal keeps.
const keeps = 64

func (j *journal) After(since uint64) (e agent.Entry, last uint64, more <-chan struct{}) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.last = since
	if j.more == nil {
		j.more = make(chan struct{})
	}
	for _, e := range j.kept {
		if e.Seq > since {
			return e, j.seq, j.more
		}
	}
	return agent.Entry{}, j.seq, j.more
}

// add numbers entries and wakes who waits.
func (j *journal) add(entries ...agent.Entry) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, e := range entries {
		j.seq++
		e.Seq = j.seq
		j.kept = append(j.kept, e)
	}
	j.kept = j.kept[max(0, len(j.kept)-keeps):]
	if j.more != nil {
		close(j.more)
		j.more = nil
	}
}

// read reports whether whoever follows has got to an entry.
func (j *journal) read(seq uint64) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.last >= seq
}
