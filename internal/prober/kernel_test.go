// SPDX-License-Identifier: Apache-2.0

package prober

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	nl "github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/kernel"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
)

// The yardstick is the kernel: its own keepalive of the same connection, heard
// on the router just before.
func TestSegmentOnTheWireIsTheKernelsOwn(t *testing.T) {
	b := newBed(t)
	sysctlIn(t, b.Client, "ipv4/ip_default_ttl", "99")
	sysctlIn(t, b.Client, "ipv6/conf/eth0/hop_limit", "98")
	expedited := func(fd int) error {
		return errors.Join(
			unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_TOS, 0xb8),
			ignore(unix.ENOPROTOOPT, unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_TCLASS, 0xb8)),
		)
	}
	for _, k := range kinds {
		k.setup = expedited
		t.Run(k.name, func(t *testing.T) { compareWithKernel(t, connect(t, b, k)) })
	}
	t.Run("IPv6 with the peer's flow label", func(t *testing.T) { compareReflected(t, b) })
	sysctlIn(t, b.Client, "ipv6/auto_flowlabels", "0")
	t.Run("IPv6 without flow labels", func(t *testing.T) { compareWithKernel(t, connect(t, b, kinds[1])) })
	sysctlIn(t, b.Client, "ipv6/auto_flowlabels", "1")
	sysctlIn(t, b.Client, "ipv6/flowlabel_state_ranges", "1")
	t.Run("IPv6 with stateless flow labels", func(t *testing.T) {
		p := connect(t, b, kinds[1])
		for (labels{auto: 1}).of(p.snapshot(t).TxHash)&labelStateless != 0 { // has the bit by chance
			p = connect(t, b, kinds[1])
		}
		compareWithKernel(t, p)
	})
	t.Run("timestamps in microseconds", func(t *testing.T) { compareMicroseconds(t, b) })
	sysctlIn(t, b.Client, "ipv4/tcp_timestamps", "0")
	t.Run("without timestamps", func(t *testing.T) { compareWithKernel(t, connect(t, b, kinds[0])) })
}

// compareReflected does where the peer's flow label is taken over.
func compareReflected(t *testing.T, b *bed) {
	sysctlIn(t, b.Client, "ipv6/flowlabel_reflect", "1")
	p := &pair{bed: b}
	p.server, p.client = labtest.PairTo(t, labtest.Dialer{NS: b.Server}, b.Client, netip.AddrPortFrom(b.ClientAddr6, 0))
	p.local, p.remote = labtest.Addr(p.client.LocalAddr()), labtest.Addr(p.client.RemoteAddr())
	if p.snapshot(t).FlowLabel == 0 {
		t.Error("no label was set for the socket")
	}
	certain := sure(t, p, p.snapshot(t))
	compareUnless(t, p, func(s *conn.Snapshot, kernels *sighting) {
		_, name, _ := kernel.Running()
		switch kept := kernels.flowLabel == s.FlowLabel; {
		case !kept && certain:
			t.Errorf("%s sends with another label than it has set for the socket, and the way of ours is said to be certain", name)
		case !kept:
			t.Skipf("%s sends with another label than it has set for the socket", name)
		case !certain && New().keepsLabels:
			t.Errorf("%s sends with the label that it has set for the socket, and the way of ours is not certain", name)
		}
	})
	sysctlIn(t, b.Client, "ipv6/flowlabel_reflect", "0")
}

// compareMicroseconds does where a route has the timestamps in microseconds.
func compareMicroseconds(t *testing.T, b *bed) {
	const usecTS = 1 << 4 // RTAX_FEATURE_TCP_USEC_TS
	in(t, b.Client, func() error {
		r := defaultRoute(false, 0, first)
		r.Features = usecTS
		return ignore(unix.EINVAL, nl.RouteReplace(r))
	})
	p := connect(t, b, kinds[0])
	if !p.snapshot(t).TimestampUsec {
		running, name, err := kernel.Running()
		if err != nil || !running.Before(kernel.Release{Major: 6, Minor: 7}) {
			t.Fatalf("%s gave milliseconds, %v", name, err)
		}
		t.Skipf("needs timestamps in microseconds, which %s has not", name)
	}
	compareWithKernel(t, p)
	reroute(t, b, false, first)
}

func ignore(errno unix.Errno, err error) error {
	if err == errno {
		return nil
	}
	return err
}

func compareWithKernel(t *testing.T, p *pair) { compareUnless(t, p, nil) }

// compareUnless does, unless what the kernel sends is a reason to skip.
func compareUnless(t *testing.T, p *pair, skip func(*conn.Snapshot, *sighting)) {
	s := p.snapshot(t)
	wire := listenIn(t, p.bed.Router)
	labtest.Setsockopt(t, p.client, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, 1)
	labtest.Setsockopt(t, p.client, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1)
	want, ok := wire.probe(t, p.local, p.remote, s.SndUna)
	if !ok {
		t.Fatal("no keepalive of the kernel heard")
	}
	if skip != nil {
		skip(s, &want)
	}
	labtest.Setsockopt(t, p.client, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 0)
	wire.empty()
	stamp := func() uint32 {
		return uint32(labtest.Getsockopt(t, p.client, unix.IPPROTO_TCP, unix.TCP_TIMESTAMP))
	}
	before := stamp()
	send(t, p, s)
	after := stamp()
	got, ok := wire.probe(t, p.local, p.remote, s.SndUna)
	if !ok {
		t.Fatal("our probe was not heard")
	}
	if got.sums != nil {
		t.Error(got.sums)
	}
	after |= 1 // TCP_TIMESTAMP shows the lowest bit as zero
	if s.Timestamps && got.tsval-before > after-before {
		t.Errorf("timestamp %d, the socket's clock said %d to %d", got.tsval, before, after)
	}
	got.tsval = want.tsval
	got.sums, want.sums = nil, nil // the kernel leaves its sums to the card
	if diff := cmp.Diff(want, got, equal, cmp.AllowUnexported(sighting{}, heard{})); diff != "" {
		t.Errorf("-kernel +ours\n%s", diff)
	}
	p.exchange(t)
}
