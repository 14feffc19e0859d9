// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"github.com/sockhealth/sockhealth/internal/agent"
)

// Limits of the judgements that have an id.
const (
	// keepFor is how long an answer that is in waits to be fetched.
	keepFor = time.Minute
	// maxIDs and maxCallerIDs bound them, under way or kept.
	maxIDs       = 4096
	maxCallerIDs = 256
	// maxKept and maxCallerKept bound the bytes of the answers kept. An
	// answer has about 500 for each socket.
	maxKept       = 16 << 20
	maxCallerKept = 2 << 20
)

// Why a judgement gets no id, or its answer is not kept.
var (
	errManyIDs       = errors.New("too many judgements")
	errManyCallerIDs = errors.New("too many judgements of one caller")
	errNotKept       = errors.New("no room for the answer")
)

// judgements run without anybody waiting for them, and are fetched by their id.
type judgements struct {
	later *background
	// after calls the function once the time has passed (time.AfterFunc).
	after func(time.Duration, func())

	mu   sync.Mutex
	byID map[string]*judgement
	of   map[identity]tally
	kept int // bytes
}

// tally counts what one caller has.
type tally struct{ ids, kept int }

// judgement is one of them. The fields below done are settled when it closes.
type judgement struct {
	id    string
	whose identity
	done  chan struct{}
	body  []byte // a report.Response
	err   error  // as Judge returned it, or errNotKept
}

func newJudgements(later *background) *judgements {
	return &judgements{
		later: later,
		after: func(d time.Duration, fn func()) { time.AfterFunc(d, fn) },
		byID:  make(map[string]*judgement),
		of:    make(map[identity]tally),
	}
}

// start judges in the background. judge must return soon after its context has
// ended. The error is errManyIDs, errManyCallerIDs or agent.ErrStopped; judge is
// not called then.
func (s *judgements) start(whose identity, judge func(context.Context) ([]agent.Result, error)) (*judgement, error) {
	j := &judgement{id: rand.Text(), whose: whose, done: make(chan struct{})}
	if err := s.enter(j); err != nil {
		return nil, err
	}
	if !s.later.start(func() { s.finish(j, judge) }) {
		s.drop(j)
		return nil, agent.ErrStopped
	}
	return j, nil
}

// enter gives the judgement a place.
func (s *judgements) enter(j *judgement) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.of[j.whose]
	switch {
	case t.ids >= maxCallerIDs:
		return errManyCallerIDs
	case len(s.byID) >= maxIDs:
		return errManyIDs
	}
	t.ids++
	s.of[j.whose] = t
	s.byID[j.id] = j
	return nil
}

// finish judges, and keeps the answer for who fetches it.
func (s *judgements) finish(j *judgement, judge func(context.Context) ([]agent.Result, error)) {
	results, err := judge(s.later.ctx)
	var body []byte
	if err == nil {
		body, err = json.Marshal(response(results))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.of[j.whose]
	switch {
	case err != nil:
		j.err = err
	case s.kept+len(body) > maxKept || t.kept+len(body) > maxCallerKept:
		j.err = errNotKept
	default:
		j.body = body
		s.kept += len(body)
		t.kept += len(body)
		s.of[j.whose] = t
	}
	close(j.done)
	s.after(keepFor, func() { s.drop(j) })
}

// find returns the caller's judgement of that id, nil where there is none:
// those of others are as good as none.
func (s *judgements) find(whose identity, id string) *judgement {
	s.mu.Lock()
	defer s.mu.Unlock()
	if j := s.byID[id]; j != nil && j.whose == whose {
		return j
	}
	return nil
}

// drop forgets a judgement. A second time it does nothing.
func (s *judgements) drop(j *judgement) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byID[j.id] != j {
		return
	}
	delete(s.byID, j.id)
	t := s.of[j.whose]
	t.ids--
	t.kept -= len(j.body)
	s.kept -= len(j.body)
	if t.ids == 0 {
		delete(s.of, j.whose)
		return
	}
	s.of[j.whose] = t
}
