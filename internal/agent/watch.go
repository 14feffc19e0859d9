// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"time"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/netns"
	"github.com/sockhealth/sockhealth/internal/sockets"
)

const (
	// maxWatched bounds the sockets watched at one time; each holds a
	// descriptor of its namespace.
	maxWatched = 4096
	// watchFor is how long a socket is watched that would have been closed.
	watchFor = time.Hour
	// watchFirst and watchLast bound the time between two looks, which doubles.
	watchFirst, watchLast = time.Second, time.Minute
)

// watch follows a socket that was condemned where the policy only observes:
// payload that comes later means that a live one would have been closed, and
// is counted. A socket is watched once at a time.
func (a *Agent) watch(ns *netns.NS, s *conn.Snapshot, policy string) {
	k := key{s.Netns, s.Cookie}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.stopped || a.watched[k] || len(a.watched) >= maxWatched {
		return
	}
	own, err := a.handles.hold(ns)
	if err != nil {
		a.Log.Warn("watch an observed socket", "socket", s.ID.String(), "err", err)
		return
	}
	a.watched[k] = true
	id, payload := s.ID, s.PayloadReceived()
	a.work.Go(func() {
		defer a.handles.drop(own)
		if a.livesOn(own, id, payload) {
			a.stats.wouldHaveClosed(policy)
			a.Log.Warn("a connection that would have been closed lives",
				"policy", policy, "local", id.Local.String(), "peer", id.Remote.String(), "cookie", id.Cookie, "netns", id.Netns)
		}
		a.mu.Lock()
		delete(a.watched, k)
		a.mu.Unlock()
	})
}

// livesOn reports whether more payload than that comes before the socket ends.
func (a *Agent) livesOn(ns *netns.NS, id conn.ID, payload uint64) bool {
	wait := watchFirst
	for began := a.Now(); a.Now()-began < watchFor; wait = min(2*wait, watchLast) {
		a.pause(wait)
		if a.ctx.Err() != nil {
			return false
		}
		s, err := a.lookOnce(ns, id)
		switch {
		case errors.Is(err, sockets.ErrGone):
			return false
		case err == nil && s.PayloadReceived() > payload:
			return true
		}
	}
	return false
}
