// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"net/netip"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/netns"
)

// sweepKey names the siblings of a socket.
type sweepKey struct {
	netns uint32
	peer  netip.AddrPort
}

// sweep asks about every other managed socket of the namespace to the same
// peer, each with a full window of its own and judged alone. It returns at once.
func (a *Agent) sweep(j *judgement) {
	k := sweepKey{j.before.Netns, j.before.Remote}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.stopped || a.sweeps[k] {
		return
	}
	ns, err := j.ns.Dup()
	if err != nil {
		a.Log.Warn("sweep siblings", "peer", k.peer.String(), "err", err)
		return
	}
	a.sweeps[k] = true
	a.work.Go(func() {
		defer ns.Close()
		if err := a.siblings(ns, k); err != nil {
			a.Log.Warn("sweep siblings", "peer", k.peer.String(), "err", err)
		}
		a.mu.Lock()
		delete(a.sweeps, k)
		a.mu.Unlock()
	})
}

// siblings starts a judgement for each and waits until all have ended, so that
// no second sweep of the same peer starts meanwhile.
func (a *Agent) siblings(ns *netns.NS, k sweepKey) error {
	var found []conn.Snapshot
	err := a.Sockets.Scan(ns, func(s conn.Snapshot) error {
		if s.Remote == k.peer && s.HasRecord && s.Cookie != 0 && s.State.Judgeable() && !a.underWay(&s) {
			found = append(found, s)
		}
		return nil
	})
	if err != nil {
		return err
	}
	done := make(chan error, len(found))
	started := 0
	for _, s := range found {
		c := &call{ns: ns, sent: a.Now(), reporter: reporterSweep}
		if !a.start(func() {
			_, err := a.judge(a.ctx, c, s)
			done <- err
		}) {
			break
		}
		started++
	}
	var errs error
	for range started {
		errs = errors.Join(errs, <-done)
	}
	return errs
}
