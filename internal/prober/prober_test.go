// SPDX-License-Identifier: Apache-2.0

package prober

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/netns"
)

func TestRefusesWhatMustNotBeProbed(t *testing.T) {
	here, err := netns.Current()
	if err != nil {
		t.Fatal(err)
	}
	defer here.Close()
	port := func(a string, p uint16) netip.AddrPort { return netip.AddrPortFrom(netip.MustParseAddr(a), p) }
	cases := map[string]func(*conn.Snapshot){
		"state close":                    func(s *conn.Snapshot) { s.State = conn.Close },
		"state listen":                   func(s *conn.Snapshot) { s.State = conn.Listen },
		"state time_wait":                func(s *conn.Snapshot) { s.State = conn.TimeWait },
		"state syn_sent":                 func(s *conn.Snapshot) { s.State = conn.SynSent },
		"state last_ack":                 func(s *conn.Snapshot) { s.State = conn.LastAck },
		"state state_0":                  func(s *conn.Snapshot) { s.State = 0 },
		"it is an MPTCP subflow":         func(s *conn.Snapshot) { s.MPTCP = true },
		"its segments are signed":        func(s *conn.Snapshot) { s.MD5OrAO = true },
		"it is in repair mode":           func(s *conn.Snapshot) { s.Repair = true },
		"a port is zero":                 func(s *conn.Snapshot) { s.Remote = port("10.91.2.2", 0) },
		"a port is zero ":                func(s *conn.Snapshot) { s.Local = port("10.91.1.2", 0) },
		"an address is invalid":          func(s *conn.Snapshot) { s.Local = netip.AddrPortFrom(netip.Addr{}, 1) },
		"an address is invalid: any":     func(s *conn.Snapshot) { s.Remote = port("0.0.0.0", 1) },
		"an address is invalid: mapped":  func(s *conn.Snapshot) { s.Remote = port("::ffff:10.91.2.2", 1) },
		"an address is invalid: group":   func(s *conn.Snapshot) { s.Remote = port("224.0.0.1", 1) },
		"an address is invalid: zone":    func(s *conn.Snapshot) { s.Local, s.Remote = port("fe80::1%lo", 1), port("fe80::2%lo", 1) },
		"an address is invalid: 4 and 6": func(s *conn.Snapshot) { s.Remote = port("fd91::2", 1) },
		"it is not in netns":             func(s *conn.Snapshot) { s.Netns++ },
	}
	for why, with := range cases {
		t.Run(why, func(t *testing.T) {
			s := snapshot("10.91.1.2:40000", "10.91.2.2:7100")
			s.Netns = here.Inode()
			with(&s)
			want, _, _ := strings.Cut(strings.TrimSpace(why), ": ")
			_, sendErr := New().Send(here, &s)
			for name, err := range map[string]error{"Send": sendErr, "Route": New().Route(here, &s)} {
				if !errors.Is(err, ErrUnprobeable) || !strings.Contains(err.Error(), want) {
					t.Errorf("%s = %v, want ErrUnprobeable because %q", name, err, want)
				}
			}
		})
	}
}

func TestEveryJudgeableStateIsProbeable(t *testing.T) {
	for state := conn.Established; state <= conn.NewSynRecv; state++ {
		s := snapshot("[fd91::2]:40000", "[fd91::3]:7100")
		s.State = state
		if got := probeable(&s) == nil; got != state.Judgeable() {
			t.Errorf("%v: probeable %v", state, got)
		}
	}
}

func TestDevices(t *testing.T) {
	for _, tt := range []struct {
		cached, bound uint32
		want          []uint32
	}{
		{0, 0, []uint32{0}},
		{5, 0, []uint32{5, 0}},
		{0, 6, []uint32{6}},
		{5, 5, []uint32{5}},
		{5, 6, []uint32{5, 6}}, // bound to a VRF, leaves by a member of it
		{1, 0, []uint32{0}},    // stays on this host
		{1, 6, []uint32{6}},
	} {
		s := snapshot("10.91.1.2:40000", "10.91.2.2:7100")
		s.DstDev, s.Ifindex = tt.cached, tt.bound
		if diff := cmp.Diff(tt.want, devices(&s)); diff != "" {
			t.Errorf("cached %d, bound %d: -want +got\n%s", tt.cached, tt.bound, diff)
		}
	}
}

func TestErrnosBecomeSentinels(t *testing.T) {
	want := map[unix.Errno]error{
		unix.EPERM: ErrBlocked, unix.EACCES: ErrBlocked,
		unix.ENETUNREACH: ErrNoRoute, unix.EHOSTUNREACH: ErrNoRoute, unix.ENETDOWN: ErrNoRoute,
		unix.ENODEV: ErrNoRoute, unix.ENXIO: ErrNoRoute, unix.EADDRNOTAVAIL: ErrNoRoute,
	}
	for errno := unix.Errno(1); errno < 134; errno++ {
		err := edge("send segment", errno)
		if !errors.Is(err, errno) || !strings.Contains(err.Error(), "send segment") {
			t.Errorf("%v is lost in %v", errno, err)
		}
		for _, sentinel := range []error{ErrBlocked, ErrNoRoute, ErrUnprobeable} {
			if errors.Is(err, sentinel) != (want[errno] == sentinel) {
				t.Errorf("%v is %v: %v", errno, sentinel, errors.Is(err, sentinel))
			}
		}
	}
}
