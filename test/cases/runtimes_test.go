// SPDX-License-Identifier: Apache-2.0

package cases

import (
	"net"
	"net/netip"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/sockhealth/sockhealth/internal/api"
	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/lab"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
)

// runtimesPolicy bounds at 10 s and forgives three lost probes.
const runtimesPolicy = `version: 1
defaults: {direction: outbound, user_timeout: 10s, keepalive: {idle: 2s, interval: 2s, count: 4}}
peers:
  - {name: server, cidrs: [10.91.2.0/24], ports: [7100]}
`

const runtimesBound = 10 * time.Second

// language is one that applications are written in.
type language struct {
	name  string
	tools []string
	// beside is the program's name where it needs nothing else to run, "" else.
	beside string
	// make makes the program of testdata/runtimes ready in a folder, and returns
	// its command line.
	make func(t *testing.T, source, dir string) []string
	ways []way
}

// way is one of setting keepalive after connect, and what it comes to.
type way struct {
	name string
	asks api.SocketOptions
}

var languages = []language{
	{
		"go", []string{"go"}, "golang", func(t *testing.T, source, dir string) []string {
			return []string{built(t, dir, "golang", "go", "build", "-o", filepath.Join(dir, "golang"), filepath.Join(source, "golang", "main.go"))}
		},
		[]way{
			{"default", api.SocketOptions{KeepAlive: true, IdleS: 15, IntervalS: 15, Count: 9}},
			{"config", api.SocketOptions{KeepAlive: true, IdleS: 300, IntervalS: 30, Count: 4}},
			{"period", api.SocketOptions{KeepAlive: true, IdleS: 3600, IntervalS: 15, Count: 9}},
			{"off", api.SocketOptions{IdleS: 15, IntervalS: 15, Count: 9}},
		},
	},
	{
		"java", []string{"javac", "java"}, "", func(t *testing.T, source, dir string) []string {
			mustRun(t, "javac", "-d", dir, filepath.Join(source, "Keepalive.java"))
			return []string{"java", "-cp", dir, "Keepalive"}
		},
		[]way{
			{"on", api.SocketOptions{KeepAlive: true}},
			{"extended", api.SocketOptions{KeepAlive: true, IdleS: 300, IntervalS: 60, Count: 2}},
			{"off", api.SocketOptions{}},
		},
	},
	{
		"node", []string{"node"}, "", func(_ *testing.T, source, _ string) []string {
			return []string{"node", filepath.Join(source, "keepalive.js")}
		},
		[]way{
			{"delay", api.SocketOptions{KeepAlive: true, IdleS: 60, IntervalS: 1, Count: 10}},
			{"on", api.SocketOptions{KeepAlive: true}},
			{"off", api.SocketOptions{IdleS: 60, IntervalS: 1, Count: 10}},
		},
	},
	{
		"python", []string{"python3"}, "", func(_ *testing.T, source, _ string) []string {
			return []string{"python3", filepath.Join(source, "keepalive.py")}
		},
		[]way{
			{"urllib3", api.SocketOptions{KeepAlive: true, IdleS: 60, IntervalS: 10, Count: 3}},
			{"short", api.SocketOptions{KeepAlive: true, IdleS: 1, UserTimeoutMS: 2000}},
			{"endless", api.SocketOptions{}},
		},
	},
	{
		"c", []string{"gcc"}, "keepalive", func(t *testing.T, source, dir string) []string {
			return []string{built(t, dir, "keepalive", "gcc", "-O2", "-Wall", "-Werror", "-o", filepath.Join(dir, "keepalive"), filepath.Join(source, "keepalive.c"))}
		},
		[]way{
			{"redis", api.SocketOptions{KeepAlive: true, IdleS: 300, IntervalS: 100, Count: 3}},
			{"one", api.SocketOptions{KeepAlive: true, IdleS: 60, IntervalS: 60, Count: 1, UserTimeoutMS: 60_000}},
			{"off", api.SocketOptions{}},
		},
	},
}

// mustRun runs a compiler.
func mustRun(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
}

// built is a program that stands beside the tests, or else what a compiler makes.
func built(t *testing.T, dir, name, compiler string, args ...string) string {
	t.Helper()
	if path, ok := labtest.Beside(name); ok {
		return path
	}
	mustRun(t, compiler, args...)
	return filepath.Join(dir, name)
}

// there reports whether a language is installed, or its program beside the tests. It
// is neither only on a machine that need not have it.
func (l *language) there(t *testing.T) bool {
	t.Helper()
	if labtest.Without(l.name) {
		return false
	}
	if _, ok := labtest.Beside(l.beside); ok && l.beside != "" {
		return true
	}
	for _, tool := range l.tools {
		if _, err := exec.LookPath(tool); err == nil {
			continue
		}
		if labtest.MustRun() {
			t.Fatalf("needs %s", tool)
		}
		t.Logf("without %s: needs %s", l.name, tool)
		return false
	}
	return true
}

// TestRuntimes: an application that sets a keepalive of its own after connect, as
// is done in its language, keeps a bound that forgives lost probes: two are lost,
// and the connection lives; the path is dead, and the application is told in time.
func TestRuntimes(t *testing.T) {
	labtest.Root(t)
	source, err := filepath.Abs("testdata/runtimes")
	if err != nil {
		t.Fatal(err)
	}
	n := newNode(t, 1, runtimesPolicy)
	a := n.start(t)
	ln := labtest.Listen(t, n.Server, netip.AddrPortFrom(n.ServerAddr4, 7100))
	var apps []*app
	for _, l := range languages {
		if !l.there(t) {
			continue
		}
		command := l.make(t, source, t.TempDir())
		for _, w := range l.ways {
			one := n.newApp(t, ln, w, command)
			one.name = l.name + " " + w.name
			apps = append(apps, one)
		}
	}
	n.wantHeld(t, apps)
	n.loseTwo(t, apps)
	n.killPath(t, apps)
	n.wantHealthy(t)
	a.stop(t)
}

// newApp starts an application and returns when it has set what it wishes.
func (n *node) newApp(t *testing.T, ln *net.TCPListener, w way, command []string) *app {
	t.Helper()
	addr := labtest.Addr(ln.Addr())
	args := append(command[1:len(command):len(command)], addr.Addr().String(), "7100", w.name)
	if filepath.Base(command[0]) == "golang" {
		args = []string{addr.String(), w.name}
	}
	a := startApp(t, n.command(t, command[0], args...), n.Client, n.cgroup)
	a.way, a.far = w, labtest.AcceptWithin(t, ln, late)
	a.want(t, "set")
	a.fd = a.socket(t, 7100)
	return a
}

// wantHeld: the options forgive, whatever was asked for.
func (n *node) wantHeld(t *testing.T, apps []*app) {
	t.Helper()
	list, err := n.admin.Sockets(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	asked := make(map[string]api.SocketOptions)
	for _, s := range list.Sockets {
		asked[s.Local] = s.App
	}
	for _, a := range apps {
		o := a.options(t)
		if !forgives(o) || o.UserTimeout > runtimesBound {
			t.Errorf("%s: %+v does not forgive, or not bound", a.name, o)
		}
		if got, ok := asked[labtest.Addr(a.far.RemoteAddr()).String()]; !ok || got != a.way.asks {
			t.Errorf("%s: asked for %+v, want %+v", a.name, got, a.way.asks)
		}
		t.Logf("%-14s asks for %+v, has %+v", a.name, a.way.asks, o)
	}
}

// loseTwo loses the answers to two keepalives of each, one after the other.
func (n *node) loseTwo(t *testing.T, apps []*app) {
	t.Helper()
	faults := make([]*lab.Fault, len(apps))
	for i, a := range apps {
		near := labtest.Addr(a.far.RemoteAddr())
		faults[i] = labtest.Fault(t)(n.Drop(lab.Match{SrcPort: 7100, Dst: lab.Only(near.Addr()), DstPort: near.Port()}))
	}
	lost := make([]bool, len(apps))
	for left, began := len(apps), time.Now(); left > 0; time.Sleep(5 * time.Millisecond) {
		for i, a := range apps {
			if !lost[i] && a.info(t).Probes >= 2 {
				labtest.Heal(t, faults[i])
				lost[i] = true
				left--
			}
		}
		if time.Since(began) > late {
			t.Fatalf("two keepalives are lost only of these: %v", lost)
		}
	}
	for _, a := range apps {
		labtest.Eventually(t, late, func() bool { return a.info(t).Probes == 0 }, a.name+": an answer, or the end")
		if state := conn.State(a.info(t).State); state != conn.Established {
			t.Fatalf("%s: two lost probes made it %s", a.name, state)
		}
		if _, err := a.far.Write([]byte("still here\n")); err != nil {
			t.Fatal(err)
		}
		a.want(t, "still here")
	}
}

// killPath loses everything from now on: every application is told.
func (n *node) killPath(t *testing.T, apps []*app) {
	t.Helper()
	labtest.Fault(t)(n.DropPort(7100))
	began := time.Now()
	for _, a := range apps {
		a.want(t, "timed out")
		if took := time.Since(began); took > runtimesBound+5*time.Second {
			t.Errorf("%s: timed out after %v", a.name, took)
		}
	}
}
