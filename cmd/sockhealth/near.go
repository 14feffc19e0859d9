// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/sockhealth/sockhealth/internal/api"
	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/netns"
)

// nearShown is how many connections a message points to.
const nearShown = 3

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

// none is the error where no connection is what was asked for. It points to those that
// nearly are.
func (a *admin) none(spaces []*netns.NS, id conn.ID) error {
	var found []near
	for _, ns := range spaces {
		// What cannot be walked points nowhere.
		_ = a.agent.Sockets.Scan(ns, func(s conn.Snapshot) error {
			if n, ok := newNear(id, s.ID); ok {
				found = append(found, n)
			}
			return nil
		})
	}
	if len(found) == 0 && id.Netns != 0 && !slices.ContainsFunc(spaces, func(ns *netns.NS) bool { return ns.Inode() == id.Netns }) {
		return fmt.Errorf("%w: network namespace %d is none that this agent acts in [see its --netns; lsns -t net lists those of the node]",
			api.ErrNoSocket, id.Netns)
	}
	if len(found) == 0 {
		return fmt.Errorf(`%w in any network namespace that this agent acts in ["sockhealth sockets" lists what is bounded, ss -tan all of a namespace; what has ended is in "sockhealth events"]`, api.ErrNoSocket)
	}
	slices.SortStableFunc(found, func(x, y near) int { return cmp.Compare(x.rank, y.rank) })
	var words []string
	for _, n := range found[:min(len(found), nearShown)] {
		words = append(words, fmt.Sprintf("%s (%s)", n.id, n.how))
	}
	more := ""
	if n := len(found) - nearShown; n > 0 {
		more = fmt.Sprintf(" and %d more", n)
	}
	return fmt.Errorf("%w in any network namespace that this agent acts in; near it: %s%s [name one of these]",
		api.ErrNoSocket, strings.Join(words, ", "), more)
}
