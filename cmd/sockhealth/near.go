// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sockhealth/sockhealth/internal/api"
	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/netns"
)

// nearShown is how many connections a message points to.
const nearShown = 3

// nearLimit bounds the search for them: each namespace that is held up takes a while, up
// to 2 s.
const nearLimit = 2 * time.Second

// near is a connection that is nearly the one that was asked for.
type near struct {
	id   conn.ID
	rank int // 0: the nearest
	how  string
}

// newNear says how near a connection is to what was asked for; false: it is not.
func newNear(asked, have conn.ID) (near, bool) {
	switch {
	case asked.Cookie != 0 && asked.Cookie == have.Cookie:
		return near{have, 0, "of that cookie"}, true
	case asked.Local.IsValid() && asked.Local == have.Local && (!asked.Remote.IsValid() || asked.Remote == have.Remote):
		return near{have, 1, "of these addresses"}, true
	case asked.Local.IsValid() && asked.Local == have.Remote && (!asked.Remote.IsValid() || asked.Remote == have.Local):
		return near{have, 2, "the other way round"}, true
	case asked.Local.IsValid() && asked.Local == have.Local:
		return near{have, 3, "of that local address"}, true
	case asked.Remote.IsValid() && asked.Remote == have.Remote:
		return near{have, 4, "to that peer"}, true
	case asked.Remote.IsValid() && asked.Remote == have.Local:
		return near{have, 5, "of that address"}, true
	}
	return near{}, false
}

// nearest are the connections of a walk that are nearest, and how many are near.
type nearest struct {
	list []near // nearShown at most, the nearest first
	all  int
}

// add notes a connection that is near.
func (n *nearest) add(one near) {
	n.all++
	at, _ := slices.BinarySearchFunc(n.list, one.rank+1, func(have near, rank int) int { return cmp.Compare(have.rank, rank) })
	n.list = slices.Insert(n.list, at, one)
	n.list = n.list[:min(len(n.list), nearShown)]
}

// join notes what another walk found.
func (n *nearest) join(other *nearest) {
	for _, one := range other.list {
		n.add(one)
	}
	n.all += other.all - len(other.list)
}

// nearIn walks over the namespaces until ctx ends or nearLimit is over. What cannot be
// walked, or is held up, points nowhere.
func (a *admin) nearIn(ctx context.Context, spaces []*netns.NS, id conn.ID) *nearest {
	ctx, cancel := context.WithTimeout(ctx, nearLimit)
	defer cancel()
	var all nearest
	for _, ns := range spaces {
		if ctx.Err() != nil {
			break
		}
		here := new(nearest) // the walk's until it has come to its end
		if _, err := a.agent.Scan(ns, func(s *conn.Snapshot) bool {
			if n, ok := newNear(id, s.ID); ok {
				here.add(n)
			}
			return false
		}); err == nil {
			all.join(here)
		}
	}
	return &all
}

// none is the error where no connection is what was asked for. It points to those that
// nearly are.
func (a *admin) none(ctx context.Context, spaces []*netns.NS, id conn.ID) error {
	found := a.nearIn(ctx, spaces, id)
	if found.all == 0 && id.Netns != 0 && !slices.ContainsFunc(spaces, func(ns *netns.NS) bool { return ns.Inode() == id.Netns }) {
		return fmt.Errorf("%w: network namespace %d is none that this agent acts in [see its --netns; lsns -t net lists those of the node]",
			api.ErrNoSocket, id.Netns)
	}
	if found.all == 0 {
		return fmt.Errorf(`%w in any network namespace that this agent acts in ["sockhealth sockets" lists what is bounded, ss -tan all of a namespace; what has ended is in "sockhealth events"]`, api.ErrNoSocket)
	}
	var words []string
	for _, n := range found.list {
		words = append(words, fmt.Sprintf("%s (%s)", n.id, n.how))
	}
	more := ""
	if n := found.all - len(found.list); n > 0 {
		more = fmt.Sprintf(" and %d more", n)
	}
	return fmt.Errorf("%w in any network namespace that this agent acts in; near it: %s%s [name one of these]",
		api.ErrNoSocket, strings.Join(words, ", "), more)
}
