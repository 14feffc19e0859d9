// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"

	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/verdict"
)

// Events is a stream of what the kernel tells; Next returns an error that wraps
// loader.ErrClosed after the stream was closed.
type Events interface {
	Next() (loader.Event, error)
}

// Follow reads events until the stream is closed, and returns nil then. It logs
// each and tells the judgement of the socket, where there is one, how it ended.
func (a *Agent) Follow(events Events) error {
	for {
		e, err := events.Next()
		switch {
		case errors.Is(err, loader.ErrClosed):
			return nil
		case errors.Is(err, loader.ErrEvent):
			a.Log.Error("read kernel event", "err", err)
			continue
		case err != nil:
			return err
		}
		a.seen(e.Netns)
		if !e.Stall {
			a.ended(&e)
		}
		policy := ""
		if peer := a.Kernel.InForce().Peer(e.Policy); peer != nil {
			policy = peer.Name
		}
		a.logEnd(&e, policy)
	}
}

// ended passes on how a socket ended, to the judgement under way about it and to
// earlier ones that still need to know.
func (a *Agent) ended(e *loader.Event) {
	end := verdict.EndClosed
	switch e.Cause {
	case loader.CauseReset:
		end = verdict.EndReset
	case loader.CauseIdle, loader.CauseInFlight:
		end = verdict.EndBound
	case loader.CauseDestroyed:
		end = verdict.EndDestroyed
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, j := range a.ends[key{e.Netns, e.Cookie}] {
		j.endMu.Lock()
		j.end = end
		j.endMu.Unlock()
	}
}
