// SPDX-License-Identifier: Apache-2.0

package cases

import (
	"maps"
	"testing"
	"time"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
)

// wantRecorded: all have their record a second after the agent first answers, beside what
// it waits for a processor meanwhile: recording is not paced, which would take two. An
// emulated machine takes as long for the question alone.
func (o *older) wantRecorded(t *testing.T, a *agent) {
	t.Helper()
	o.status(t)
	began, before := time.Now(), a.waited(t)
	for ; ; time.Sleep(10 * time.Millisecond) {
		asked := time.Now()
		n := o.peer(t, "out").Adopted + o.peer(t, "in").Adopted
		if n == uint64(o.bounded) {
			break
		}
		limit := time.Second + a.waited(t) - before
		if testing.Short() {
			limit = late
		}
		if took := asked.Sub(began); took > limit {
			t.Fatalf("%d of %d connections are recorded %v after the first answer, want all after %v", n, o.bounded, took, limit)
		}
	}
	t.Logf("recorded %v after the first answer, in which the agent waited %v for a processor", time.Since(began).Round(time.Millisecond), (a.waited(t) - before).Round(time.Millisecond))
}

// wantBounded: nothing waits but those whose peers take no more, and that is so as
// soon as the pace allows. Three times that is enough where no answer is lost.
func (o *older) wantBounded(t *testing.T, paced *paced) {
	t.Helper()
	began, limit := time.Now(), time.Duration(o.bounded)*time.Second/pace+late
	if paced != nil && !testing.Short() {
		limit = 3*time.Duration(o.bounded)*time.Second/pace + 5*time.Second
	}
	for want := map[string]uint64{"window": uint64(o.slow)}; ; time.Sleep(10 * time.Millisecond) {
		waits := o.waiting(t)
		if paced != nil {
			paced.look(t)
		}
		if maps.Equal(waits, want) {
			break
		}
		if time.Since(began) > limit {
			t.Fatalf("after %v connections wait: %v", limit, waits)
		}
	}
	took := time.Since(began).Round(time.Millisecond)
	if paced == nil {
		t.Logf("bounded %v after the start", took)
		return
	}
	// Those of wishes whose applications have keepalives of their own.
	t.Logf("bounded %v after the start, with %d keepalives", took, paced.want(t, o.bounded/len(wishes)))
}

// waiting counts connections whose options are not all set, by what they wait for.
func (o *older) waiting(t *testing.T) map[string]uint64 {
	t.Helper()
	waits := make(map[string]uint64)
	for _, name := range []string{"out", "in"} {
		p := o.peer(t, name)
		delete(p.Unmanaged, "pending") // at the time of the last scan
		if len(p.Unmanaged) > 0 {
			t.Fatalf("%s: not managed: %v", name, p.Unmanaged)
		}
		for why, n := range p.Pending {
			waits[why] += n
		}
	}
	return waits
}

// wantListed: the agent knows each by its direction, and what its application
// asked for.
func (o *older) wantListed(t *testing.T) {
	t.Helper()
	list, err := o.admin.Sockets(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(list.Sockets) != o.bounded {
		t.Errorf("%d sockets are listed, want %d", len(list.Sockets), o.bounded)
	}
	wish := make(map[string]conn.Options)
	bounded, _ := o.ends(t)
	for _, s := range bounded {
		wish[s.Local.String()+s.Remote.String()] = wishes[s.Wish].asks
	}
	for _, s := range list.Sockets {
		direction := map[string]string{"out": "outbound", "in": "inbound"}[s.Policy]
		asked, ok := wish[s.Local+s.Peer]
		if !ok || direction == "" || s.Direction != direction || s.App.UserTimeoutMS != asked.UserTimeout.Milliseconds() ||
			s.App.KeepAlive != asked.KeepAlive || s.App.IdleS != int64(asked.Idle/time.Second) {
			t.Fatalf("listed %+v, asked for %+v", s, asked)
		}
	}
}

// wantShutAgain: a peer that takes more and then, for a moment, no more, costs no
// connection either (kernel-facts L9).
func (o *older) wantShutAgain(t *testing.T) {
	t.Helper()
	o.write(t, olderPolicy+"# and once more\n") // a round comes at once
	if _, err := o.admin.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	await(t, 2*time.Second)
	call[int](t, o.client, "Fill", slowPort)
	labtest.Eventually(t, late, func() bool { return o.blocked(t) == o.slow }, "the windows shut again")
	await(t, 2*time.Second)
	for _, s := range o.client.see(t) {
		if s.State != conn.Established || s.Err != "" || s.Port == slowPort && (!s.Options.KeepAlive || s.Options.Idle != policed.Idle) {
			t.Fatalf("lost, or not bounded: %+v", s)
		}
	}
	o.wantDrained(t)
}

// wantDrained: all bytes come that were sent to peers that took no more.
func (o *older) wantDrained(t *testing.T) {
	t.Helper()
	for _, h := range o.servers {
		o.drained += call[int](t, h, "Drain", slowPort)
	}
	if sent := call[int](t, o.client, "Filled", slowPort); o.drained != sent || sent == 0 {
		t.Errorf("%d bytes came of %d", o.drained, sent)
	}
}

// wantOptions: each has what it is to have, and lives.
func (o *older) wantOptions(t *testing.T) {
	t.Helper()
	bounded, others := o.ends(t)
	for _, s := range bounded {
		want := wishes[s.Wish].gets
		switch {
		case s.State != conn.Established || s.Err != "":
			t.Errorf("lost: %+v", s)
		case s.Port == slowPort: // no user timeout, which would end it
			want.UserTimeout = 0
			if s.Options != want {
				t.Errorf("%+v, want %+v", s, want)
			}
		case want == conn.Options{}:
			if !forgives(s.Options) || s.Options.UserTimeout != wishes[s.Wish].asks.UserTimeout {
				t.Errorf("%+v does not forgive", s)
			}
		case s.Options != want:
			t.Errorf("%+v, want %+v", s, want)
		}
		if t.Failed() {
			t.FailNow() // of ten thousand
		}
	}
	o.wantUntouched(t, others)
}

// wantUntouched: those that no policy names have what their applications set.
func (o *older) wantUntouched(t *testing.T, others []Seen) {
	t.Helper()
	for _, s := range others {
		want := unset
		if s.Port == freePort && s.Remote.Port() == freePort {
			want = wished(wishes[s.Wish].asks)
		}
		if s.Options != want || s.State != conn.Established || s.Err != "" {
			t.Fatalf("no policy names %+v, want %+v", s, want)
		}
	}
}

// wantRestored: each has what its application asked for, and nothing else.
func (o *older) wantRestored(t *testing.T) {
	t.Helper()
	bounded, others := o.ends(t)
	for _, s := range bounded {
		if want := wished(wishes[s.Wish].asks); s.Options != want || s.State != conn.Established || s.Err != "" {
			t.Fatalf("%+v, want %+v", s, want)
		}
	}
	o.wantUntouched(t, others)
}

// wantCarry: every connection carries bytes, and those whose peers took no more
// all that was sent on them.
func (o *older) wantCarry(t *testing.T) {
	t.Helper()
	for _, port := range []int{outPort, inPort, freePort} {
		call[int](t, o.client, "Send", port)
		for _, h := range o.servers {
			call[int](t, h, "Receive", port)
			call[int](t, h, "Send", port)
		}
		call[int](t, o.client, "Receive", port)
	}
	o.wantDrained(t)
}
