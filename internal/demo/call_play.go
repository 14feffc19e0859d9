// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/sockhealth/sockhealth/internal/conn"
)

const callHead = `The call incident, %d cases side by side. A client holds a channel to each of its
peers; a call on it times out after %.0f s and is reported, and the client waits on for
the answer. Why there is none differs: a dead peer, a dead connection, a stopped
process, slow work.
`

// playCalls plays the incident and judges it. said gets what the processes said
// where something does not hold.
func playCalls(ctx context.Context, s *stage, said io.Writer) (_ *Incident, err error) {
	r := newCallRun(s)
	defer func() {
		if err != nil && ctx.Err() == nil {
			tellSaid(said, suspects([]*bed{&r.bed}))
		}
		err = errors.Join(err, r.close())
	}()
	if err := r.setUp(ctx); err != nil {
		return nil, err
	}
	if err := r.strike(ctx); err != nil {
		return nil, err
	}
	if err := r.watch(ctx); err != nil {
		return nil, err
	}
	incident := newCallIncident()
	incident.Watched = conn.Now() - r.zero
	for i, rec := range r.records() {
		incident.Rows = append(incident.Rows, r.cases[i].judge(rec))
	}
	if !incident.Held() {
		tellSaid(said, []*bed{&r.bed})
	}
	return incident, nil
}

func newCallIncident() *Incident {
	return &Incident{
		Name: callName, Title: "The call", Asked: "required",
		Times: "Times count from the sending of a case's first call.",
		Lesson: `Every figure holds. What was closed was dead, or hung by its own policy's measure, and
nothing else was touched: no slow call, no sibling, no other peer.`,
	}
}

// watch returns when every case has been seen to its end.
func (r *callRun) watch(ctx context.Context) error {
	err := r.until(ctx, func(elapsed time.Duration) bool {
		return elapsed >= callSettle && (r.settled() || elapsed >= callPatience)
	})
	if err != nil {
		return err
	}
	if err := r.count(); err != nil {
		return err
	}
	if err := r.again(ctx); err != nil {
		return err
	}
	patience := conn.Now() - r.zero + callAgain
	err = r.until(ctx, func(elapsed time.Duration) bool { return r.worksAgain() || elapsed >= patience })
	if err != nil {
		return err
	}
	return r.lookLast()
}

// until looks again and again whether something has happened, and has stopped
// processes go on when it is time.
func (r *callRun) until(ctx context.Context, happened func(elapsed time.Duration) bool) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		elapsed := conn.Now() - r.zero
		if err := errors.Join(r.died(), r.resume(elapsed)); err != nil {
			return err
		}
		if happened(elapsed) {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// resume has stopped processes go on whose time has come.
func (r *callRun) resume(elapsed time.Duration) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, c := range r.cases {
		if c.resume == 0 || elapsed < c.resume || r.recs[i].resumed != never {
			continue
		}
		r.recs[i].resumed = conn.Now() - r.zero
		if err := r.peers[i].goOn(); err != nil {
			return err
		}
	}
	return nil
}

// settled reports whether every call has ended and every report was answered.
func (r *callRun) settled() bool {
	return r.all(func(c *callCase, rec *callRecord) bool { return rec.settled(c) })
}

// worksAgain reports whether every channel that had to stay was tried.
func (r *callRun) worksAgain() bool {
	return r.all(func(c *callCase, rec *callRecord) bool { return rec.worksAgain(c) })
}

func (r *callRun) all(is func(*callCase, *callRecord) bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.cases {
		if !is(&r.cases[i], &r.recs[i]) {
			return false
		}
	}
	return true
}

// count takes what the router has counted into the records.
func (r *callRun) count() error {
	for i, counters := range r.counts {
		for _, c := range counters {
			n, err := c.Packets()
			if err != nil {
				return err
			}
			r.mu.Lock()
			r.recs[i].counts = append(r.recs[i].counts, int(n))
			r.mu.Unlock()
		}
	}
	return nil
}

// again uses every channel that had to stay once more, and dials the peers to
// which there was none.
func (r *callRun) again(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callAgain)
	defer cancel()
	for i, c := range r.cases {
		for _, ch := range c.channels {
			if !ch.kept {
				continue
			}
			if err := r.order(order{Do: orderCall, Case: i, Name: again(ch.name), Channel: ch.name}); err != nil {
				return err
			}
		}
		if !c.noSocket {
			continue
		}
		if err := r.open(ctx, i, callChannel{name: "control"}); err != nil {
			return err
		}
		n, err := r.counts[i][0].Packets()
		if err != nil {
			return err
		}
		r.mu.Lock()
		r.recs[i].control = int(n)
		r.mu.Unlock()
	}
	return nil
}

// lookLast takes what the kernel says of the channels into the records.
func (r *callRun) lookLast() error {
	for i, c := range r.cases {
		for _, ch := range c.channels {
			kept, err := r.stillThere(channelKey{i, ch.name})
			if err != nil {
				return err
			}
			r.mu.Lock()
			r.recs[i].kept[ch.name] = kept
			r.mu.Unlock()
		}
	}
	return nil
}

// records returns what was seen.
func (r *callRun) records() []callRecord {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := slices.Clone(r.recs)
	for i := range all {
		all[i].requests, all[i].reports = slices.Clone(all[i].requests), slices.Clone(all[i].reports)
	}
	return all
}

// tellCalls says what is about to be played.
func tellCalls(out io.Writer) {
	fmt.Fprintf(out, callHead, len(callCases()), callTimeout.Seconds())
}
