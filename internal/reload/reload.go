// SPDX-License-Identifier: Apache-2.0

package reload

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/sockhealth/sockhealth/internal/policy"
)

// settle is how long a file has to be left alone before it is read: editors and
// deployment tools write in several steps.
const settle = 200 * time.Millisecond

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

// Watch returns a watch of the file, to be started before the first Load so
// that no change in between is missed.
//
// It watches the directory: an editor's rename replaces the file, and a
// Kubernetes ConfigMap replaces the directory that the file is a link into.
func (r *Reloader) Watch() (*Watch, error) {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("watch policy %q: %w", r.path, err)
	}
	if err := w.Add(filepath.Dir(r.path)); err != nil {
		return nil, errors.Join(fmt.Errorf("watch policy %q: %w", r.path, err), w.Close())
	}
	return &Watch{r: r, w: w, seen: target(r.path)}, nil
}

// Watch follows one file. Run it once, then Close it.
type Watch struct {
	r    *Reloader
	w    *fsnotify.Watcher
	seen string // where the path led when it was last read
}

// Close ends the watch.
func (w *Watch) Close() error { return w.w.Close() }

// Run reloads on each change until ctx ends, which returns nil, or the watch
// breaks.
func (w *Watch) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	<-timer.C
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case e, ok := <-w.w.Events:
			if !ok {
				return nil
			}
			if w.concerns(e) {
				timer.Reset(settle)
			}
		case err, ok := <-w.w.Errors:
			if !ok {
				return nil
			}
			// Events were lost, perhaps ours.
			w.r.log.Warn("watch policy", "policy", w.r.path, "err", err)
			timer.Reset(settle)
		case <-timer.C:
			w.seen = target(w.r.path)
			_ = w.r.Reload("change") // logged there
		}
	}
}

// concerns reports whether an event in the directory may have changed the file:
// it names the file, or the file's path leads elsewhere now.
func (w *Watch) concerns(e fsnotify.Event) bool {
	if e.Op == fsnotify.Chmod {
		return false
	}
	return filepath.Clean(e.Name) == filepath.Clean(w.r.path) || target(w.r.path) != w.seen
}

// target is where links lead, or "" where they lead nowhere.
func target(path string) string {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return ""
	}
	return real
}
