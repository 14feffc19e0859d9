// SPDX-License-Identifier: Apache-2.0

package reload

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"
)

const (
	// settle is how long a file has to be left alone before it is read: editors and
	// deployment tools write in several steps.
	settle = 200 * time.Millisecond
	// interval is the time between two looks at the file where nothing tells of a
	// change. A look is one stat.
	interval = 2 * time.Second
)

// Watch returns a watch of the file, to be started before the first Load so
// that no change in between is missed.
//
// It watches the directory: an editor's rename replaces the file, and a
// Kubernetes ConfigMap replaces the directory that the file is a link into. What
// happens elsewhere nobody tells there: at the end of a link, to a directory above,
// or, where the file alone is mounted, beside it. So it looks at the file, too, now
// and then; where others have used up what the kernel gives of inotify, that is all it
// does, and the log says so.
func (r *Reloader) Watch() (*Watch, error) {
	w, err := r.listen()
	if remedy := exhausted(err); remedy != "" {
		r.log.Warn("changes of the policy file are noticed late, by a look now and then ["+remedy+"]",
			"policy", r.path, "every", interval, "err", err)
	} else if err != nil {
		return nil, fmt.Errorf("watch policy %q: %w", r.path, err)
	}
	return &Watch{r: r, w: w, read: lookAt(r.path)}, nil
}

// listen has the kernel tell of changes in the file's directory.
func (r *Reloader) listen() (*fsnotify.Watcher, error) {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, err
	}
	if err := w.Add(filepath.Dir(r.path)); err != nil {
		return nil, errors.Join(err, w.Close())
	}
	return w, nil
}

// exhausted returns the remedy where an error says that a limit of inotify is reached,
// "" for any other.
func exhausted(err error) string {
	switch {
	case errors.Is(err, unix.EMFILE): // or this process has too many files open
		return "raise the sysctl fs.inotify.max_user_instances, and restart the agent"
	case errors.Is(err, unix.ENOSPC):
		return "raise the sysctl fs.inotify.max_user_watches, and restart the agent"
	}
	return ""
}

// Watch follows one file. Run it once, then Close it.
type Watch struct {
	r    *Reloader
	w    *fsnotify.Watcher // nil: nobody tells
	read look              // when it was last read
}

// look is what a look at a file shows of its content without reading it: it changes
// with that. The zero value is a file that cannot be looked at.
type look struct {
	dev, ino     uint64
	size         int64
	mtime, ctime unix.Timespec
}

// lookAt looks at the file that a path leads to by all its links.
func lookAt(path string) look {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return look{}
	}
	return look{dev: st.Dev, ino: st.Ino, size: st.Size, mtime: st.Mtim, ctime: st.Ctim}
}

// Close ends the watch.
func (w *Watch) Close() error {
	if w.w == nil {
		return nil
	}
	return w.w.Close()
}

// Run reloads on each change until ctx ends, which returns nil, or the watch
// breaks.
func (w *Watch) Run(ctx context.Context) error {
	timer := time.NewTimer(0) // since when it is left alone
	<-timer.C
	defer timer.Stop()
	now := w.read // the last look
	settling := func() {
		now = lookAt(w.r.path)
		timer.Reset(settle)
	}
	var events chan fsnotify.Event // nil: nothing comes
	var errs chan error
	if w.w != nil {
		events, errs = w.w.Events, w.w.Errors
	}
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case e, ok := <-events:
			if !ok {
				return nil
			}
			if w.concerns(e, now) {
				settling()
			}
		case err, ok := <-errs:
			if !ok {
				return nil
			}
			// Events were lost, perhaps ours.
			w.r.log.Warn("watch policy", "policy", w.r.path, "err", err)
			settling()
		case <-ticker.C:
			if lookAt(w.r.path) != w.read {
				settling()
			}
		case <-timer.C:
			if lookAt(w.r.path) != now { // it is being written
				settling()
				continue
			}
			w.read = now
			_ = w.r.Reload("change") // logged there
		}
	}
}

// concerns reports whether an event in the directory may have changed the file:
// it names the file, or what the path leads to has changed since the last look.
func (w *Watch) concerns(e fsnotify.Event, last look) bool {
	if e.Op == fsnotify.Chmod {
		return false
	}
	return filepath.Clean(e.Name) == filepath.Clean(w.r.path) || lookAt(w.r.path) != last
}
