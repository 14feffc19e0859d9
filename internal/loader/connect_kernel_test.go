// SPDX-License-Identifier: Apache-2.0

package loader_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/lab"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/loader/loadertest"
)

// connectBound is that of connectPolicy.
const connectBound = 1500 * time.Millisecond

// tick is by how much sooner the kernel may count it as over, which counts in ticks.
const tick = 10 * time.Millisecond

// connectPolicy names the second server, too, and leaves connect() to it alone.
const connectPolicy = slowPolicy + `
  connect_timeout: 1500ms
peers:
  - {name: server, cidrs: [10.91.2.0/24, "fd91:0:0:2::/64"]}
  - {name: free, cidrs: [10.91.3.0/24], connect_timeout: off}
`

// patient is a policy whose connect() may wait for a second SYN, and a third.
func patient(override string) string {
	return slowPolicy + "  connect_timeout: 20s\n  app_override: " + override + `
peers:
  - {name: server, cidrs: [10.91.2.0/24, "fd91:0:0:2::/64"]}
`
}

// hole is a listener whose port nothing reaches until the fault is healed.
func hole(t *testing.T, b *lab.Lab, addr netip.Addr) (netip.AddrPort, *lab.Fault) {
	t.Helper()
	ln := labtest.Listen(t, b.Server, netip.AddrPortFrom(addr, 0))
	at := labtest.Addr(ln.Addr())
	return at, labtest.Fault(t)(b.DropC2S(at.Port()))
}

// A connect() that nobody answers ends at the bound, whatever its family, whether
// its application waits in it or not, and leaves the socket as it was. Without a
// bound it goes on.
func TestConnectBound(t *testing.T) {
	b := loadertest.New(t, connectPolicy)
	events := events(t, b.Programs)
	four, _ := hole(t, b.Lab, b.ServerAddr4)
	free := netip.AddrPortFrom(b.Servers[1].Addr4, four.Port())
	unbound := try(t, b.Client, free, false, nil)
	waits := make(chan error, 1)
	began := time.Now()
	go func() {
		_, err := labtest.Dialer{NS: b.Client, Timeout: time.Minute}.Try(four)
		waits <- err
	}()
	all := []*attempt{try(t, b.Client, four, false, nil)}
	if lab.IPv6() {
		six, _ := hole(t, b.Lab, b.ServerAddr6)
		all = append(all, try(t, b.Client, six, false, nil), try(t, b.Client, four, true, nil))
	}
	for i, a := range all {
		if ut := a.underWay; ut != int(connectBound.Milliseconds()) {
			t.Errorf("%d: while it connects the user timeout is %d ms", i, ut)
		}
	}
	for i, a := range all {
		err, took := a.ended(connectBound + late)
		if !errors.Is(err, unix.ETIMEDOUT) || took < connectBound-tick {
			t.Errorf("%d: connect ended with %v after %s, want ETIMEDOUT after %s", i, err, took, connectBound)
		}
		if ut := a.userTimeout(); ut != 0 {
			t.Errorf("%d: afterwards the user timeout is %d ms", i, ut)
		}
	}
	select {
	case err := <-waits:
		if took := time.Since(began); !errors.Is(err, unix.ETIMEDOUT) || took < connectBound-tick {
			t.Errorf("a connect that waits ended with %v after %s", err, took)
		}
	case <-time.After(connectBound + late):
		t.Fatal("a connect that waits has not ended")
	}
	if ut := unbound.userTimeout(); ut != 0 {
		t.Errorf("with connect_timeout off the user timeout is %d ms", ut)
	}
	if state := unbound.get(unix.SOL_SOCKET, unix.SO_ERROR); state != 0 {
		t.Errorf("with connect_timeout off connect ended: %v", unix.Errno(state))
	}
	wantConnectsTold(t, b, events, len(all)+1)
	want := loader.Counters{ConnectsBounded: uint64(len(all) + 1)}
	if d := cmp.Diff(want, mustCounters(t, b.Programs, "server")); d != "" {
		t.Errorf("counters (-want +got):\n%s", d)
	}
	if d := cmp.Diff(loader.Counters{}, mustCounters(t, b.Programs, "free")); d != "" {
		t.Errorf("counters where nothing is bounded (-want +got):\n%s", d)
	}
	wantNoFaults(t, b.Programs)
}

// wantConnectsTold waits for the events of n connects that ended at the bound.
func wantConnectsTold(t *testing.T, b *loadertest.Bed, events <-chan loader.Event, n int) {
	t.Helper()
	told := time.After(late)
	for i := range n {
		var e loader.Event
		select {
		case e = <-events:
		case <-told:
			t.Fatalf("%d events, want %d", i, n)
		}
		if e.Stall || e.Cause != loader.CauseConnect || e.Errno != unix.ETIMEDOUT || e.Cookie == 0 || e.Netns != b.Client.Inode() ||
			e.Remote.Port() == 0 || e.Local.Port() == 0 || e.Direction != conn.Outbound || e.BytesReceived != 0 || e.BytesAcked != 0 {
			t.Errorf("event %+v", e)
		}
	}
}

// wish is what an application asks for, before connect() and while it is under way.
type wish struct {
	name           string
	before, during []option
	app            time.Duration  // the user timeout that is remembered
	connecting     map[string]int // the one in force meanwhile, in ms, by app_override
}

type option struct{ level, name, value int }

func (a *attempt) apply(options []option) {
	a.t.Helper()
	for _, o := range options {
		a.set(o.level, o.name, o.value)
	}
}

// wishes are tried against patient.
func wishes() []wish {
	ut := func(ms int) []option { return []option{{unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, ms}} }
	keepalive := []option{
		{unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, 7}, {unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, 2},
		{unix.IPPROTO_TCP, unix.TCP_KEEPCNT, 3}, {unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
	}
	const bound = 20_000
	policed := map[string]int{"tighten": bound, "enforce": bound, "allow": bound}
	tight := map[string]int{"tighten": 15_000, "enforce": bound, "allow": 15_000}
	loose := map[string]int{"tighten": bound, "enforce": bound, "allow": 40_000}
	return []wish{
		{"nothing", nil, nil, 0, policed},
		{"tighter before", ut(15_000), nil, 15 * time.Second, tight},
		{"looser before", ut(40_000), nil, 40 * time.Second, loose},
		{"the same before", ut(bound), nil, bound * time.Millisecond, policed},
		{"tighter meanwhile", nil, ut(15_000), 15 * time.Second, tight},
		{"looser meanwhile", ut(15_000), ut(40_000), 40 * time.Second, loose},
		{"none meanwhile", ut(15_000), ut(0), 0, policed},
		{"keepalive meanwhile", nil, keepalive, 0, policed},
	}
}

// What an application asks for, before connect() or while it is under way, holds as
// it does without a bound of connect(): that bound is never taken for its wish.
func TestConnectWish(t *testing.T) {
	b := loadertest.New(t, patient("tighten"))
	for _, override := range []string{"tighten", "enforce", "allow"} {
		t.Run(override, func(t *testing.T) {
			b.SetPolicy(t, patient(override))
			at, fault := hole(t, b.Lab, b.ServerAddr4)
			all := wishes()
			var made []*attempt
			for _, w := range all {
				a := try(t, b.Client, at, false, func(a *attempt) { a.apply(w.before) })
				a.apply(w.during)
				if got := a.userTimeout(); got != w.connecting[override] {
					t.Errorf("%s: while it connects the user timeout is %d ms, want %d", w.name, got, w.connecting[override])
				}
				made = append(made, a)
			}
			labtest.Heal(t, fault)
			for i, a := range made {
				if err, took := a.ended(late); err != nil {
					t.Fatalf("%s: connect: %v after %s", all[i].name, err, took)
				}
			}
			b.SetPolicy(t, impatient(override))
			for i, w := range all {
				wantAsWithout(t, b, override, &w, made[i])
			}
			wantNoFaults(t, b.Programs)
		})
	}
}

// wantAsWithout compares a connection with that of the same application where
// nothing bounds connect().
func wantAsWithout(t *testing.T, b *loadertest.Bed, override string, w *wish, got *attempt) {
	t.Helper()
	// With allow it matters that it has spoken: then the programs must have heard it.
	before, after := append(slices.Clone(w.before), w.during...), []option(nil)
	if override == "allow" {
		before, after = w.before, w.during
	}
	want := try(t, b.Client, got.remote, false, func(a *attempt) { a.apply(before) })
	if err, _ := want.ended(late); err != nil {
		t.Fatal(err)
	}
	want.apply(after)
	if d := cmp.Diff(want.options(), got.options()); d != "" {
		t.Errorf("%s: options (-without +with a bound of connect):\n%s", w.name, d)
	}
	rec := got.record(b.Programs, b.Client)
	if rec.App.UserTimeout != w.app {
		t.Errorf("%s: remembered of the application: %+v, want a user timeout of %s", w.name, rec.App, w.app)
	}
	if d := cmp.Diff(want.record(b.Programs, b.Client).App, rec.App); d != "" {
		t.Errorf("%s: remembered of the application (-without +with a bound of connect):\n%s", w.name, d)
	}
}

// impatient is patient without a bound of connect().
func impatient(override string) string {
	return slowPolicy + "  app_override: " + override + `
peers:
  - {name: server, cidrs: [10.91.2.0/24, "fd91:0:0:2::/64"]}
`
}

// The end of the application's own attempts, and its own shorter user timeout, come
// first; neither is counted as ours.
func TestConnectEndsSooner(t *testing.T) {
	b := loadertest.New(t, patient("tighten"))
	at, _ := hole(t, b.Lab, b.ServerAddr4)
	// One more attempt of the kernel's, and no more at the same distance (Linux 6.5).
	err := b.Client.Do(func() error {
		err := os.WriteFile("/proc/sys/net/ipv4/tcp_syn_linear_timeouts", []byte("0"), 0)
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	count := try(t, b.Client, at, false, func(a *attempt) { a.set(unix.IPPROTO_TCP, unix.TCP_SYNCNT, 1) })
	own := try(t, b.Client, at, false, func(a *attempt) { a.set(unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 1000) })
	for name, a := range map[string]*attempt{"TCP_SYNCNT": count, "its own user timeout": own} {
		if err, took := a.ended(15 * time.Second); !errors.Is(err, unix.ETIMEDOUT) {
			t.Errorf("%s: connect ended with %v after %s, want ETIMEDOUT before 20 s", name, err, took)
		}
	}
	if c := mustCounters(t, b.Programs, "server"); c.ConnectsBounded != 0 {
		t.Errorf("%d connects counted as bounded", c.ConnectsBounded)
	}
	if ut := count.userTimeout(); ut != 0 {
		t.Errorf("afterwards the user timeout is %d ms", ut)
	}
	if ut := own.userTimeout(); ut != 1000 {
		t.Errorf("afterwards its own user timeout is %d ms", ut)
	}
	wantNoFaults(t, b.Programs)
}

// A socket whose connect() was refused or ended is as it was, and connects again.
func TestConnectAgain(t *testing.T) {
	b := loadertest.New(t, connectPolicy)
	at, fault := hole(t, b.Lab, b.ServerAddr4)
	a := try(t, b.Client, at, false, nil)
	if err, _ := a.ended(connectBound + late); !errors.Is(err, unix.ETIMEDOUT) {
		t.Fatalf("connect: %v", err)
	}
	labtest.Heal(t, fault)
	a.connect(unix.AF_INET)
	if err, _ := a.ended(late); err != nil {
		t.Fatalf("connect again: %v", err)
	}
	a.wantOptions(slow)
	if rec := a.record(b.Programs, b.Client); rec.App != (conn.Options{}) {
		t.Errorf("remembered of the application: %+v", rec.App)
	}
	refused := try(t, b.Client, netip.AddrPortFrom(b.ServerAddr4, 1), false, func(a *attempt) {
		a.set(unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 30_000)
	})
	if err, _ := refused.ended(late); !errors.Is(err, unix.ECONNREFUSED) || refused.userTimeout() != 30_000 {
		t.Errorf("connect ended with %v, the user timeout is %d ms", err, refused.userTimeout())
	}
	if c := mustCounters(t, b.Programs, "server"); c.ConnectsBounded != 1 || c.OpenedOutbound != 1 || c.Open() != 1 {
		t.Errorf("counters %+v", c)
	}
	wantNoFaults(t, b.Programs)
}

// Who accepts a connection is no concern of connect_timeout.
func TestConnectInbound(t *testing.T) {
	b := loadertest.New(t, fmt.Sprintf(`%s
  connect_timeout: 1500ms
peers:
  - {name: client, cidrs: [10.91.1.0/24], direction: inbound}
`, slowPolicy))
	client, server := labtest.Pair(t, b.Lab, 0)
	wantOptions(t, "client", client, unset)
	wantOptions(t, "server", server, slow)
	if rec := mustRecord(t, b.Programs, b.Server, labtest.Addr(server.LocalAddr()), labtest.Addr(server.RemoteAddr())); rec.App != (conn.Options{}) {
		t.Errorf("remembered of the application: %+v", rec.App)
	}
	wantNoFaults(t, b.Programs)
}

// An upgrade that comes between connect() and the connection loses neither.
func TestConnectUpgrade(t *testing.T) {
	b := newPinBed(t)
	// Time for the start of another agent on a slow machine, and the SYN after that.
	text := strings.Replace(patient("tighten"), "connect_timeout: 20s", "connect_timeout: 2m", 1)
	at, fault := hole(t, b.Lab, b.ServerAddr4)
	old := b.start(t, loader.LoadOlder, text)
	a := try(t, b.Client, at, false, func(a *attempt) { a.set(unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 300_000) })
	if got := a.userTimeout(); got != 120_000 {
		t.Fatalf("while it connects the user timeout is %d ms", got)
	}
	old.mustStop(t)
	next := b.start(t, loadPinned, text)
	labtest.Heal(t, fault)
	if err, _ := a.ended(2 * time.Minute); err != nil {
		t.Fatal(err)
	}
	a.wantOptions(slow)
	if rec := a.record(next.Programs, b.Client); rec.App != (conn.Options{UserTimeout: 5 * time.Minute}) || rec.Effective != slow {
		t.Errorf("record %+v", rec)
	}
	wantNoFaults(t, next.Programs)
}
