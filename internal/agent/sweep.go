// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"net/netip"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/netns"
)

// sweepKey names the siblings of a socket: those to the same service at the
// same peer. The service is the peer's port for outbound connections, ours for
// inbound ones, whose peer's port is any.
type sweepKey struct {
	netns     uint32
	peer      netip.Addr
	direction conn.Direction
	port      uint16
}

func siblingsOf(s *conn.Snapshot) sweepKey {
	k := sweepKey{s.Netns, s.Remote.Addr(), s.Record.Direction, s.Remote.Port()}
	if k.direction == conn.Inbound {
		k.port = s.Local.Port()
	}
	return k
}

// sweep asks about every other managed socket of the namespace to the same
// peer, each with a full window of its own and judged alone, if somebody whose
// call it is wants to know. It returns at once, whether that is so.
func (a *Agent) sweep(j *judgement) bool {
	k := siblingsOf(&j.before)
	a.mu.Lock()
	defer a.mu.Unlock()
	if !j.sweeps || a.stopped {
		return false
	}
	if a.sweeps[k] {
		return true
	}
	ns, err := a.handles.hold(j.ns)
	if err != nil {
		a.Log.Warn("sweep siblings", "peer", k.peer.String(), "err", err)
		return true
	}
	a.sweeps[k] = true
	a.work.Go(func() {
		defer a.handles.drop(ns)
		if err := a.siblings(ns, k, j.before.Cookie); err != nil {
			a.Log.Warn("sweep siblings", "peer", k.peer.String(), "err", err)
		}
		a.mu.Lock()
		delete(a.sweeps, k)
		a.mu.Unlock()
	})
	return true
}

// siblings starts or joins a judgement for each and waits until all have ended, so that
// no second sweep of the same peer starts meanwhile.
func (a *Agent) siblings(ns *netns.NS, k sweepKey, self uint64) error {
	found, err := a.Scan(ns, func(s *conn.Snapshot) bool {
		return s.HasRecord && siblingsOf(s) == k && s.Cookie != 0 && s.Cookie != self && s.State.Judgeable() && !s.Orphan && !a.underWay(s) && !a.queue.waits(s)
	})
	if err != nil {
		return err
	}
	a.judgeAll(a.ctx, &call{ns: ns, sent: a.Now(), reporter: reporterSweep}, found)
	return nil
}
