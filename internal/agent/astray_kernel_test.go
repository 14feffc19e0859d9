// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"errors"
	"io"
	"net"
	"testing"
	"time"

	nl "github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/agent"
	"github.com/sockhealth/sockhealth/internal/kernel"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/loader/loadertest"
	"github.com/sockhealth/sockhealth/internal/verdict"
)

// TestRoutedByProtocol: TCP has a table of its own, and whatever else leaves, a raw
// segment too, goes to a router that is not there. Retransmissions that were lost in
// an outage that is over, and segments of ours after it, condemn nothing.
func TestRoutedByProtocol(t *testing.T) {
	b := newBed(t, patient)
	in(t, b.Client, func() error {
		const tcps = 100
		all := &net.IPNet{IP: make(net.IP, 4), Mask: make(net.IPMask, 4)}
		own := nl.NewRule()
		own.Table, own.Family, own.IPProto = tcps, unix.AF_INET, unix.IPPROTO_TCP
		return errors.Join(
			nl.RouteAdd(&nl.Route{Dst: all, Gw: net.IPv4(10, 91, 1, 1), Table: tcps}), nl.RuleAdd(own),
			nl.RouteReplace(&nl.Route{Dst: all, Gw: net.IPv4(10, 91, 1, 77)}))
	})
	client, server := labtest.Pair(t, b.Lab, 0)
	exchange(t, client, server)
	outage := func() func() {
		fault := labtest.Fault(t)(b.DropPort(labtest.Addr(server.LocalAddr()).Port()))
		return func() { labtest.Heal(t, fault) }
	}

	heal := outage()
	client.Write([]byte("request"))
	r := report(b.Client, client, 0)
	// The next one is then 6.4 s away, and tells nothing in the window.
	labtest.Eventually(t, 3*late, func() bool { return labtest.TCPInfo(t, client).Retransmits >= 5 }, "retransmissions")
	heal()
	wantVerdict(t, b.judge(t, r), verdict.Unknown, verdict.ReasonUnconfirmed, agent.ActionNone)
	server.SetReadDeadline(time.Now().Add(2 * late))
	if _, err := io.ReadFull(server, make([]byte, 7)); err != nil {
		t.Errorf("the request: %v", err)
	}
	wantWorks(t, server, client)

	b.silent(t, b.Client, client, 1200*time.Millisecond)
	wantVerdict(t, b.judge(t, report(b.Client, client, 0)), verdict.AliveSlow, "", agent.ActionNone)
	outage()
	b.silent(t, b.Client, client, 1200*time.Millisecond)
	if loadertest.Has(t, b.Programs, kernel.Provoke) { // or too few keepalives come by themselves
		wantVerdict(t, b.judge(t, report(b.Client, client, 0)), verdict.DeadPath, "", agent.ActionClosed)
	}
}
