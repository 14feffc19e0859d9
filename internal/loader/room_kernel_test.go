// SPDX-License-Identifier: Apache-2.0

package loader_test

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/kernel"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/loader/loadertest"
)

// roomPolicy lets applications have connections without a user timeout, as those under
// TCP_RTO_MAX_MS are.
const roomPolicy = `version: 1
defaults: {user_timeout: 15s, keepalive: {idle: 2s, interval: 2s, count: 5}, app_override: allow}
peers: [{name: server, cidrs: [10.91.2.0/24]}]
`

// roomy is a bed whose connections' keepalives are provoked by hand.
type roomy struct{ *adoption }

func newRoomy(t *testing.T) *roomy {
	t.Helper()
	return &roomy{inForce(t, roomPolicy, kernel.Provoke)}
}

// pair is a connection whose application has keepalives of its own.
func (r *roomy) pair(t *testing.T, idle, interval, count int, userTimeout time.Duration) (c, peer *net.TCPConn) {
	t.Helper()
	c, peer = labtest.Pair(t, r.Lab, 0)
	labtest.Setsockopt(t, c, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1)
	for option, value := range map[int]int{
		unix.TCP_USER_TIMEOUT: int(userTimeout / time.Millisecond), unix.TCP_KEEPIDLE: idle,
		unix.TCP_KEEPINTVL: interval, unix.TCP_KEEPCNT: count,
	} {
		labtest.Setsockopt(t, c, unix.IPPROTO_TCP, option, value)
	}
	want := conn.Options{
		KeepAlive: true, Idle: time.Duration(idle) * time.Second, Interval: time.Duration(interval) * time.Second,
		Count: count, UserTimeout: userTimeout,
	}
	wantOptions(t, "of its own", c, want)
	return c, peer
}

// reach is one pass of Provoke or Calm: whether it reached the connection.
func (r *roomy) reach(t *testing.T, fn func([]uint64) ([]uint64, error), c *net.TCPConn) bool {
	t.Helper()
	var got []uint64
	cookie := labtest.Cookie(t, c)
	err := r.Client.Do(func() (err error) {
		got, err = fn([]uint64{cookie})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return slices.Contains(got, cookie) // beside those of passes that run meanwhile
}

// lose provokes n keepalives that stay unanswered.
func (r *roomy) lose(t *testing.T, c *net.TCPConn, n int) {
	t.Helper()
	for range n {
		before := r.look(t, r.Client, c).ProbesOut
		if !r.reach(t, r.Provoke, c) {
			t.Fatal("not provoked")
		}
		labtest.Eventually(t, late, func() bool { return r.look(t, r.Client, c).ProbesOut > before }, "a keepalive")
	}
}

// calm ends it, and waits for the keepalive that this sets off where one is due.
func (r *roomy) calm(t *testing.T, c *net.TCPConn, sends bool) {
	t.Helper()
	before := r.look(t, r.Client, c).ProbesOut
	if !r.reach(t, r.Calm, c) {
		t.Fatal("not calmed")
	}
	if sends {
		labtest.Eventually(t, late, func() bool { return r.look(t, r.Client, c).ProbesOut > before }, "a keepalive")
	}
}

// hear has something come from the peer.
func (r *roomy) hear(t *testing.T, c, peer *net.TCPConn) {
	t.Helper()
	wantAlive(t, "after an outage", c, peer)
	labtest.Eventually(t, late, func() bool { return r.look(t, r.Client, c).ProbesOut == 0 }, "the peer is heard")
}

// guard makes one pass where a survey finds something to do; false: it finds nothing.
func (r *roomy) guard(t *testing.T) bool {
	t.Helper()
	found, err := r.SurveyWindows()
	if err != nil {
		t.Fatal(err)
	}
	if found.Shut[r.Client.Inode()] == 0 {
		return false
	}
	(&guarding{r.adoption}).guard(t)
	return true
}

// TestProvokedRoom: keepalives that were provoked and lost, more than the connection's
// count, end nothing (kernel-facts T18): not while they are, after some of its own, nor
// when the options come back. Once the peer is heard so does the count.
func TestProvokedRoom(t *testing.T) {
	r := newRoomy(t)
	c, peer := r.pair(t, 2, 30, 3, 0)
	drop := labtest.Fault(t)(r.DropPort(labtest.Addr(peer.LocalAddr()).Port()))
	labtest.Eventually(t, 2*time.Second+late, func() bool { return r.look(t, r.Client, c).ProbesOut > 0 }, "one of its own is lost")
	r.lose(t, c, 5)
	r.calm(t, c, true)
	s := r.look(t, r.Client, c)
	if s.Record.Room <= int(s.ProbesOut) || s.Options.Count != s.Record.Room || s.Record.Effective.Count != 3 || s.Record.Provoked {
		t.Errorf("%d unanswered, options %+v, record %+v", s.ProbesOut, s.Options, s.Record)
	}
	if r.guard(t) {
		t.Error("there is something to do for the guard while the peer is not heard")
	}
	labtest.Heal(t, drop)
	r.hear(t, c, peer)
	if !r.guard(t) {
		t.Error("the guard has nothing to do once it is")
	}
	if s := r.look(t, r.Client, c); s.Options.Count != 3 || s.Record.Room != 0 {
		t.Errorf("heard: options %+v, record %+v", s.Options, s.Record)
	}
	if r.guard(t) {
		t.Error("the guard has something left to do")
	}
	wantNoFaults(t, r.Programs)
}

// TestProvokedBound: a connection whose peer is gone ends when it would have ended,
// however often it was provoked, and whether that was taken back or not.
func TestProvokedBound(t *testing.T) {
	r := newRoomy(t)
	const bound = 8 * time.Second // of 2 s and three times 2 s
	t.Cleanup(func() { wantNoFaults(t, r.Programs) })
	for name, calms := range map[string]bool{"taken back": true, "the agent was killed": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, peer := r.pair(t, 2, 2, 3, 0)
			wantAlive(t, "before", c, peer)
			heard := time.Now()
			labtest.Fault(t)(r.DropPort(labtest.Addr(peer.LocalAddr()).Port()))
			r.lose(t, c, 5)
			if calms {
				r.calm(t, c, false)
			}
			err, _ := readErr(t, c, bound+2*time.Second+late)
			took := time.Since(heard)
			// What was last heard of the peer came a moment before.
			if !errors.Is(err, unix.ETIMEDOUT) || took < bound-200*time.Millisecond {
				t.Errorf("read ended with %v after %s, want ETIMEDOUT after %s", err, took, bound)
			}
			t.Logf("ended after %s", took)
		})
	}
}

// TestProvokedUserTimeout: where a connection that lives may be silent for as long as
// its user timeout none is provoked. What was lost in an outage would end it when the
// kernel asks next, long after that.
func TestProvokedUserTimeout(t *testing.T) {
	r := newRoomy(t)
	c, peer := r.pair(t, 8, 1, 3, 5*time.Second)
	other, _ := r.pair(t, 3, 1, 3, 5*time.Second)
	drop := labtest.Fault(t)(r.DropPort(labtest.Addr(peer.LocalAddr()).Port()))
	r.silent(t, r.Client, c, 1100*time.Millisecond)
	for range 2 {
		if r.reach(t, r.Provoke, c) {
			t.Error("provoked")
		}
	}
	if !r.reach(t, r.Provoke, other) || !r.reach(t, r.Calm, other) {
		t.Error("another connection is not provoked")
	}
	r.reach(t, r.Calm, c)
	labtest.Heal(t, drop)
	before := r.look(t, r.Client, c).AckStamp
	labtest.Eventually(t, 8*time.Second+late, func() bool { return r.look(t, r.Client, c).AckStamp != before }, "the peer answers the kernel's own")
	wantAlive(t, "after that", c, peer)
	wantNoFaults(t, r.Programs)
}

// TestProvokedWish: an application that sets the count meanwhile has it once the peer is
// heard, and at once where it is more than there is room.
func TestProvokedWish(t *testing.T) {
	r := newRoomy(t)
	c, peer := r.pair(t, 2, 30, 3, 0)
	drop := labtest.Fault(t)(r.DropPort(labtest.Addr(peer.LocalAddr()).Port()))
	r.lose(t, c, 4)
	r.calm(t, c, false)
	room := r.look(t, r.Client, c).Record.Room
	labtest.Setsockopt(t, c, unix.IPPROTO_TCP, unix.TCP_KEEPCNT, 2)
	if s := r.look(t, r.Client, c); s.Options.Count != room || s.Record.Effective.Count != 2 || s.Record.App.Count != 2 {
		t.Errorf("fewer: room %d, options %+v, record %+v", room, s.Options, s.Record)
	}
	labtest.Heal(t, drop)
	r.hear(t, c, peer)
	r.guard(t)
	if s := r.look(t, r.Client, c); s.Options.Count != 2 || s.Record.Room != 0 {
		t.Errorf("heard: options %+v, record %+v", s.Options, s.Record)
	}
	again := labtest.Fault(t)(r.DropPort(labtest.Addr(peer.LocalAddr()).Port()))
	r.silent(t, r.Client, c, 1100*time.Millisecond)
	r.lose(t, c, 3)
	r.calm(t, c, false)
	labtest.Setsockopt(t, c, unix.IPPROTO_TCP, unix.TCP_KEEPCNT, 100)
	if got := labtest.Options(t, c).Count; got != 100 {
		t.Errorf("more: count %d", got)
	}
	labtest.Heal(t, again)
	r.hear(t, c, peer)
	r.guard(t)
	if s := r.look(t, r.Client, c); s.Options.Count != 100 || s.Record.Room != 0 {
		t.Errorf("more: options %+v, record %+v", s.Options, s.Record)
	}
	wantNoFaults(t, r.Programs)
}

// TestProvokedAdopt: a pass of adoption takes nothing of it for the application's wish,
// neither what is left of a judgement nor what an agent left that was killed in one, and
// puts it back when the peer is heard; where no policy names the connection any more, too.
func TestProvokedAdopt(t *testing.T) {
	r := newRoomy(t)
	loadertest.Need(t, r.Programs, kernel.Adopt)
	var all, peers []*net.TCPConn
	for range 2 {
		c, peer := r.pair(t, 2, 30, 3, 0)
		all, peers = append(all, c), append(peers, peer)
	}
	own := labtest.Options(t, all[0])
	for name, calms := range map[string]bool{"left of a judgement": true, "the agent was killed": false} {
		for _, c := range all {
			r.silent(t, r.Client, c, 1100*time.Millisecond)
		}
		heal := r.outage(t, all, peers, calms)
		for range 2 {
			told, _ := r.pass(t, r.Client, plenty)
			for _, c := range all {
				s := r.look(t, r.Client, c)
				if one := adopted(t, told, c); one.Outcome != loader.Managed || one.Wait != loader.WaitStuck {
					t.Errorf("%s: told %+v", name, one)
				}
				if s.Record.Effective != own || s.Record.Provoked == calms || s.Record.Room != s.Options.Count {
					t.Errorf("%s: options %+v, record %+v", name, s.Options, s.Record)
				}
			}
		}
		heal()
		r.settle(t, r.Client)
		for _, c := range all {
			wantOptions(t, name, c, own)
			if rec := r.look(t, r.Client, c).Record; rec.Room != 0 || rec.Provoked || rec.Pending {
				t.Errorf("%s: record %+v", name, rec)
			}
		}
	}
	heal := r.outage(t, all, peers, true)
	r.setPolicy(t, "version: 1\npeers: [{name: server, cidrs: [192.0.2.0/24]}]\n")
	told, _ := r.pass(t, r.Client, plenty)
	if one := adopted(t, told, all[0]); one.Wait != loader.WaitStuck {
		t.Errorf("released: told %+v", one)
	}
	heal()
	r.settle(t, r.Client)
	for _, c := range all {
		wantOptions(t, "released", c, own)
	}
	wantNoFaults(t, r.Programs)
}

// outage provokes keepalives that are lost, and ends it: by Calm, or as an agent does that
// is killed meanwhile. When it is healed the peers are heard.
func (r *roomy) outage(t *testing.T, all, peers []*net.TCPConn, calms bool) (heal func()) {
	t.Helper()
	drop := labtest.Fault(t)(r.DropC2S(0))
	for _, c := range all {
		r.lose(t, c, 4)
		if calms {
			r.calm(t, c, false)
		} else {
			labtest.Control(t, c, func(fd int) error { return loader.KilledJudging(r.Programs, fd) })
		}
	}
	return func() {
		labtest.Heal(t, drop)
		for i := range all {
			r.hear(t, all[i], peers[i])
		}
	}
}

// TestProvokedReleased: a user timeout that no policy wants any more goes when what was
// provoked and lost under it is no more than the application's count. Without one the next
// keepalive would end the connection.
func TestProvokedReleased(t *testing.T) {
	a := newAdoption(t, `version: 1
defaults: {user_timeout: 40s, keepalive: {idle: 2s, interval: 2s, count: 5}}
peers: [{name: server, cidrs: [10.91.2.0/24]}]
`)
	loadertest.Need(t, a.Programs, kernel.Provoke)
	r := &roomy{a}
	d := labtest.Dialer{NS: a.Client, Setup: func(fd int) error {
		set := func(option, value int) error { return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, option, value) }
		return errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1), set(unix.TCP_KEEPIDLE, 2),
			set(unix.TCP_KEEPINTVL, 2), set(unix.TCP_KEEPCNT, 3))
	}}
	c, peer := labtest.PairTo(t, d, a.Server, netip.AddrPortFrom(a.ServerAddr4, 0))
	own := labtest.Options(t, c)
	a.settle(t, a.Client)
	drop := labtest.Fault(t)(a.DropPort(labtest.Addr(peer.LocalAddr()).Port()))
	r.lose(t, c, 5)
	r.calm(t, c, false)
	a.setPolicy(t, "version: 1\npeers: [{name: server, cidrs: [192.0.2.0/24]}]\n")
	told, _ := a.pass(t, a.Client, plenty)
	if one := adopted(t, told, c); one.Wait != loader.WaitStuck {
		t.Errorf("told %+v", one)
	}
	labtest.Eventually(t, late, func() bool { return a.look(t, a.Client, c).ProbesOut >= 7 }, "one more that is due")
	labtest.Heal(t, drop)
	r.hear(t, c, peer)
	a.settle(t, a.Client)
	wantOptions(t, "released", c, own)
	wantNoFaults(t, a.Programs)
}
