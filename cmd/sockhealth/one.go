// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/sockhealth/sockhealth/internal/agent"
	"github.com/sockhealth/sockhealth/internal/api"
	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/coverage"
	"github.com/sockhealth/sockhealth/internal/netns"
	"github.com/sockhealth/sockhealth/internal/sockets"
	"github.com/sockhealth/sockhealth/internal/verdict"
)

// Explain implements api.Admin.
func (a *admin) Explain(ctx context.Context, id conn.ID) (x api.Explanation, err error) {
	err = a.one(ctx, id, func(ns *netns.NS, s *conn.Snapshot) error {
		x = a.explain(ctx, ns, s)
		return nil
	})
	return x, err
}

// Probe implements api.Admin.
func (a *admin) Probe(ctx context.Context, id conn.ID) (r agent.Result, err error) {
	err = a.one(ctx, id, func(ns *netns.NS, s *conn.Snapshot) error {
		r, err = a.agent.Probe(ctx, ns, *s)
		return err
	})
	return r, err
}

// explain says all about one socket.
func (a *admin) explain(ctx context.Context, ns *netns.NS, s *conn.Snapshot) api.Explanation {
	peer, unmanaged := a.agent.PolicyOf(ns, s)
	x := api.Explanation{Detail: api.NewDetail(s), Unmanaged: unmanaged}
	rule := peer
	if unmanaged == verdict.ReasonOlder { // of this rule
		var reason coverage.Reason
		reason, x.Remedy = a.unrecorded(ctx, s, rule)
		x.Unmanaged = string(reason)
	}
	if unmanaged != "" {
		peer = nil
	}
	ground := a.ground(ns)
	x.Socket = a.socket(s, peer, ground)
	if g := a.guard.Load(); g != nil && s.Record.Guarded {
		x.Detail.GuardIntervalMS = g.Status().Interval.Milliseconds()
	}
	if rule != nil {
		r := api.NewRule(rule, a.programs.InForce().Policy.File, s.Remote.Addr())
		figures := rule.FiguresOn(ground)
		f := api.NewFigures(&figures)
		x.Rule, x.Figures = &r, &f
	}
	return x
}

// one calls fn with a look at the one socket that is all that the ID says.
func (a *admin) one(ctx context.Context, id conn.ID, fn func(*netns.NS, *conn.Snapshot) error) error {
	a.meet(id.Netns)
	spaces, release, unseen := a.covered()
	defer release()
	var in *netns.NS
	var found []conn.Snapshot
	var failed error
	for _, ns := range spaces {
		if id.Netns != 0 && id.Netns != ns.Inode() {
			continue
		}
		here, err := a.matches(ns, id)
		failed = errors.Join(failed, err) // it may be in another
		if len(here) > 0 {
			in, found = ns, append(found, here...)
		}
	}
	switch len(found) {
	case 0:
		if failed != nil {
			return errors.Join(failed, unseen)
		}
		return outOfSight(a.none(ctx, spaces, id), unseen)
	case 1:
		return fn(in, &found[0])
	}
	return fmt.Errorf("%w, among them %s and %s [name the peer, the cookie or the namespace]",
		api.ErrAmbiguous, found[0].ID, found[1].ID)
}

// outOfSight adds to the error of a connection that was not found why it may be there all the
// same, where some namespaces could not be looked into.
func outOfSight(none, unseen error) error {
	if unseen == nil {
		return none
	}
	return fmt.Errorf("%w; it may be where this agent cannot look: %w", none, unseen)
}

// meet looks for a namespace that is younger than the last look. 0 is none.
func (a *admin) meet(inode uint32) {
	if inode == 0 || a.registry == nil {
		return
	}
	if ns, ok := a.registry.ByInode(inode); ok {
		_ = ns.Close()
		return
	}
	_ = a.registry.Refresh() // its Status has the error
}

// matches returns the connections of one namespace that are all that the ID says.
func (a *admin) matches(ns *netns.NS, id conn.ID) (found []conn.Snapshot, err error) {
	if id.Local.IsValid() && id.Remote.IsValid() {
		s, err := a.agent.Sockets.Get(ns, id.Local, id.Remote)
		if errors.Is(err, sockets.ErrGone) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		found = append(found, s)
	} else if found, err = a.agent.Find(ns, id.Local, id.Cookie); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(found, func(s conn.Snapshot) bool {
		return id.Remote.IsValid() && id.Remote != s.Remote || id.Cookie != 0 && id.Cookie != s.Cookie
	}), nil
}
