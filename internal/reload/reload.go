// SPDX-License-Identifier: Apache-2.0

package reload

import (
	"log/slog"
	"sync"
	"time"

	"github.com/sockhealth/sockhealth/internal/policy"
)

// Reloader reads one policy file. Use New.
type Reloader struct {
	path  string
	apply func(*policy.Policy) error
	log   *slog.Logger

	// one serialises reads, so that the newest content is applied last.
	one sync.Mutex

	mu     sync.Mutex
	status Status
}

// Status tells of the last read and of the policy in force.
type Status struct {
	OK       bool      // the last read was taken
	Err      error     // why it was not
	Revision string    // of the policy in force
	Loaded   time.Time // when it came into force: reads that find it unchanged do not count; wall clock
	Taken    time.Time // when the file was last taken, unchanged or not; wall clock
}

// New returns a reloader of the file at path. apply puts a policy in force or
// leaves the old one there and says why.
func New(path string, apply func(*policy.Policy) error, log *slog.Logger) *Reloader {
	return &Reloader{path: path, apply: apply, log: log}
}

// Load reads the file now and puts it in force. The error is a *policy.Errors
// where the file is not right; the policy in force stays then.
func (r *Reloader) Load() error {
	_, err := r.load()
	return err
}

// load is Load. It returns the revision that was in force before, too.
func (r *Reloader) load() (before string, err error) {
	r.one.Lock()
	defer r.one.Unlock()
	before = r.Status().Revision
	p, err := policy.Load(r.path)
	if err == nil {
		err = r.apply(p)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.status.OK, r.status.Err = err == nil, err
	if err != nil {
		return before, err
	}
	r.status.Taken = time.Now()
	if p.Revision != before {
		r.status.Revision, r.status.Loaded = p.Revision, r.status.Taken
	}
	return before, nil
}

// Status returns what became of the last read.
func (r *Reloader) Status() Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.status
}

// Reload is Load with a line in the log: what came of it, and every error of a
// bad file in one attribute.
func (r *Reloader) Reload(why string) error {
	before, err := r.load()
	s := r.Status()
	switch {
	case err != nil:
		r.log.Error("policy refused, the old one stays", "policy", r.path, "why", why, "revision", before, "err", err)
	case s.Revision == before:
		r.log.Info("policy unchanged", "policy", r.path, "why", why, "revision", s.Revision)
	default:
		r.log.Info("policy in force", "policy", r.path, "why", why, "revision", s.Revision, "was", before)
	}
	return err
}
