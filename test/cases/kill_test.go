// SPDX-License-Identifier: Apache-2.0

package cases

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/kernel"
	"github.com/sockhealth/sockhealth/internal/lab"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/loader/loadertest"
)

// killPolicies take turns. A judgement of what does not answer takes a second and a
// half.
var (
	killPolicies = [2]string{killPolicy("15s", 5, 2, 5), killPolicy("21s", 7, 3, 4)}
	killGives    = [2]conn.Options{policed, {KeepAlive: true, Idle: 7 * time.Second, Interval: 3 * time.Second, Count: 4, UserTimeout: 21 * time.Second}}
)

func killPolicy(userTimeout string, idle, interval, count int) string {
	return fmt.Sprintf(`version: 1
defaults: {direction: outbound, user_timeout: %s, keepalive: {idle: %ds, interval: %ds, count: %d}, probe: {window: 1500ms, attempts: 3}}
peers:
  - {name: live, cidrs: [10.91.2.0/24], ports: [7100]}
  - {name: mute, cidrs: [10.91.2.0/24], ports: [7101]}
`, userTimeout, idle, interval, count)
}

// killer kills agents.
type killer struct {
	*node
	r        *rand.Rand
	starts   time.Duration // what a start takes
	reloads  time.Duration
	stops    time.Duration
	provokes bool // a connection that is judged shows it
	policy   int  // that is in the file
	seen     *ids
	reported *net.TCPConn // answers
	mute     *net.TCPListener
	suspects []*net.TCPConn // did not answer, and no judgement came to its end
	met      int            // judgements
}

// TestKilledAgent: the agent is killed at random moments of its start, a reload, a
// judgement and its stop, while a client opens connections all the time. None is
// unbounded, whether or not an agent runs; each start succeeds at the first try;
// and when the programs are taken off nothing is left of them.
func TestKilledAgent(t *testing.T) {
	k := &killer{node: newNode(t, 1, killPolicies[0]), seen: newIDs(), policy: 0}
	labtest.Enter(t, k.cgroup)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	k.r = rand.New(rand.NewPCG(seed, 0))
	k.provokes = loadertest.Has(t, loadertest.Load(t), kernel.Provoke)
	k.measure(t)
	k.mute = labtest.Listen(t, k.Server, netip.AddrPortFrom(k.ServerAddr4, 7101))
	k.reported, _ = labtest.Pair(t, k.Lab, 7100)

	client := k.newClient(t)
	phases := []func(*testing.T, *agent){k.inStart, k.inReload, k.inJudgement, k.inStop}
	kills := max(labtest.Fewer(50), len(phases))
	for i := range kills {
		phases[i%len(phases)](t, k.launch(t, os.Getenv(program)))
	}
	for ; k.met == 0 && kills < 60; kills++ { // a slow machine may be late for all
		k.inJudgement(t, k.launch(t, os.Getenv(program)))
	}
	client.end(t)
	t.Logf("%d kills, %d of them during a judgement, %d connections", kills, k.met, client.opened)
	if k.met == 0 {
		t.Error("no kill met a judgement")
	}

	a := k.start(t)
	k.wantInLine(t, client)
	if got, want := k.peer(t, "live").Opened, uint64(client.opened+1); got != want {
		t.Errorf("%d connections counted, want %d", got, want)
	}
	k.wantHealthy(t)
	k.seen.of(t, a)
	a.stop(t)
	k.seen.pinned(t, k.bpffs)
	k.output(t, k.ns, "detach", "--yes", "--bpffs", k.bpffs)
	k.wantNothing(t)
}

// measure finds out how long a start, a reload and a stop take.
func (k *killer) measure(t *testing.T) {
	t.Helper()
	began := time.Now()
	a := k.start(t)
	k.starts = time.Since(began)
	k.seen.of(t, a)
	k.flip(t)
	began = time.Now()
	if _, err := k.admin.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	k.reloads = time.Since(began)
	began = time.Now()
	a.stop(t)
	k.stops = time.Since(began)
	const exact = 100 * time.Microsecond
	t.Logf("a start takes %v, a reload %v, a stop %v", k.starts.Round(exact), k.reloads.Round(exact), k.stops.Round(exact))
}

// soon kills the agent at a random moment before d has passed, and demands that
// it had nothing to complain of.
func (k *killer) soon(t *testing.T, a *agent, d time.Duration) {
	t.Helper()
	select {
	case <-time.After(time.Duration(k.r.Int64N(int64(d)))):
	case <-a.ended:
	}
	a.kill()
	if said := a.complaints(); said != nil {
		t.Errorf("an agent complains: %q", said)
	}
}

func (k *killer) inStart(t *testing.T, a *agent) {
	k.soon(t, a, k.starts)
}

func (k *killer) inReload(t *testing.T, a *agent) {
	a.await(t)
	k.flip(t)
	go func() { _, _ = k.admin.Reload(t.Context()) }() // it may be cut short
	k.soon(t, a, 2*k.reloads)
}

// flip puts the other policy into the file.
func (k *killer) flip(t *testing.T) {
	t.Helper()
	k.policy = 1 - k.policy
	k.write(t, killPolicies[k.policy])
}

// inJudgement has two connections judged: one is well, on the other nothing that is
// asked is answered until the agent is gone.
func (k *killer) inJudgement(t *testing.T, a *agent) {
	a.await(t)
	k.seen.of(t, a)
	suspect := labtest.Dial(t, k.Client, netip.AddrPort{}, labtest.Addr(k.mute.Addr()))
	labtest.AcceptWithin(t, k.mute, late)
	fault := labtest.Fault(t)(k.Drop(lab.Match{SrcPort: 7101, DstPort: labtest.Addr(suspect.LocalAddr()).Port()}))
	defer k.report(t, suspect)()
	labtest.Eventually(t, late, func() bool {
		over := labtest.State(t, suspect) != conn.Established // before anybody looked
		return over || k.status(t).Judgements > 0 && k.judged(t, suspect)
	}, "the judgement of the suspect")
	defer k.report(t, k.reported)() // that judgement is short
	k.soon(t, a, time.Second)
	met := k.judged(t, suspect)
	labtest.Heal(t, fault)
	if labtest.State(t, suspect) == conn.Established { // else it was condemned before
		k.suspects = append(k.suspects, suspect)
		if met {
			k.met++
		}
	}
}

// judged reports whether a connection that does not answer is under judgement. Its
// keepalives come every second then, where the kernel can be made to send them, and
// stay so where nobody ends the judgement.
func (k *killer) judged(t *testing.T, c *net.TCPConn) bool {
	t.Helper()
	return !k.provokes || labtest.Options(t, c).Idle == time.Second
}

// report starts to report a connection, on which something was just asked.
func (k *killer) report(t *testing.T, c *net.TCPConn) (end func()) {
	t.Helper()
	cmd := k.command(t, os.Getenv(program), "report", "--run-dir", "run", "--elapsed", "0s",
		"--local", c.LocalAddr().String(), "--peer", c.RemoteAddr().String())
	cmd.Stderr = new(bytes.Buffer)
	labtest.Start(t, k.Client, cmd)
	return func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
}

func (k *killer) inStop(t *testing.T, a *agent) {
	a.await(t)
	if err := a.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	k.soon(t, a, k.stops)
}

// wantInLine: every connection that is still open has what the policy in force
// gives, also where a judgement or a reload was cut short; without adoption, what
// one of both gives.
func (k *killer) wantInLine(t *testing.T, c *client) {
	t.Helper()
	adopts := loadertest.Has(t, loadertest.Load(t), kernel.Adopt)
	open := slices.Concat(c.kept, k.suspects, []*net.TCPConn{k.reported})
	wrong := func() (out []conn.Options) {
		for i, c := range open {
			o := labtest.Options(t, c)
			if state := labtest.State(t, c); state != conn.Established {
				t.Fatalf("connection %d of %d is %s", i, len(open), state)
			}
			if o != killGives[k.policy] && (adopts || o != killGives[1-k.policy]) {
				out = append(out, o)
			}
		}
		return out
	}
	for began := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		left := wrong()
		if len(left) == 0 {
			return
		}
		if time.Since(began) > 2*late {
			t.Fatalf("%d of %d connections are not in line: %+v", len(left), len(open), left[:min(5, len(left))])
		}
	}
}
