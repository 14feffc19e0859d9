// SPDX-License-Identifier: Apache-2.0

package prober

import (
	"errors"
	"testing"

	"github.com/sockhealth/sockhealth/internal/conn"
	nl "github.com/vishvananda/netlink"
)

// TestLinkDown: where a device that was set down took the routes along, that is told;
// and where it is up again without them, or gone for good, it is not.
func TestLinkDown(t *testing.T) {
	b := newBed(t)
	var all []*conn.Snapshot
	for _, kind := range kinds {
		all = append(all, connect(t, b, kind).snapshot(t))
	}
	link := func(act func(nl.Link) error) {
		t.Helper()
		in(t, b.Client, func() error {
			eth0, err := nl.LinkByName("eth0")
			if err != nil {
				return err
			}
			return act(eth0)
		})
	}
	want := func(when string, down bool) {
		t.Helper()
		for i, s := range all {
			err := New().Route(b.Client, s)
			if !errors.Is(err, ErrNoRoute) || errors.Is(err, ErrLinkDown) != down {
				t.Errorf("%v, %s: %v; want no route, because a link is down: %v", kinds[i], when, err, down)
			}
		}
	}
	link(nl.LinkSetDown)
	want("set down", true)
	link(nl.LinkSetUp)
	want("up again", false)
	link(nl.LinkDel)
	want("gone", false)
}
