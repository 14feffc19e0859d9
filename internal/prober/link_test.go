// SPDX-License-Identifier: Apache-2.0

package prober

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
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
			labtest.Eventually(t, 10*time.Second, func() bool { // the kernel tells of a carrier when it comes to it
				err := New().Route(b.Client, s)
				return errors.Is(err, ErrNoRoute) && errors.Is(err, ErrLinkDown) == down
			}, fmt.Sprintf("%s, %s: no route, because a link is down: %v", kinds[i].name, when, down))
		}
	}
	link(nl.LinkSetDown)
	want("set down", true)
	link(nl.LinkSetUp)
	want("up again", false)
	link(nl.LinkDel)
	want("gone", false)
}
