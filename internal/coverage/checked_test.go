// SPDX-License-Identifier: Apache-2.0

package coverage

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sockhealth/sockhealth/internal/lab"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/loader/loadertest"
	"github.com/sockhealth/sockhealth/internal/netns"
)

// late is how long what must come may take.
const late = 20 * time.Second

func canaryService(port uint16) netip.AddrPort { return netip.AddrPortFrom(loader.CanaryAddr(), port) }

// outAndIn names the lab's connections at both ends; what comes to one port is
// left alone where it was not seen to open.
const outAndIn = `version: 1
peers:
  - name: out
    cidrs: [10.91.2.0/24, "fd91:0:0:2::/64"]
    direction: outbound
  - name: in
    cidrs: [10.91.1.0/24, "fd91:0:0:1::/64"]
    direction: inbound
  - name: left
    cidrs: [10.91.2.2/32]
    ports: [7300]
    direction: outbound
    existing: ignore
`

// checked is a lab that is checked. The test's process is in the cgroup where it
// enters it.
type checked struct {
	*lab.Lab
	*loader.Programs
	cgroup *lab.Cgroup
	*Scanner
	mended int
}

// newChecked loads the programs, and attaches them later.
func newChecked(t *testing.T) *checked {
	t.Helper()
	c := &checked{Lab: labtest.New(t, lab.Options{}), Programs: loadertest.Load(t), cgroup: labtest.Cgroup(t)}
	(&loadertest.Bed{Programs: c.Programs}).SetPolicy(t, outAndIn)
	c.Scanner = New(Config{
		Programs: c.Programs, Namespaces: c, Cgroup: c.cgroup.Path,
		Canary: func(context.Context) error { return nil },
		Mend:   func() { c.mended++ },
		Log:    slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	return c
}

// All implements Namespaces.
func (c *checked) All() []*netns.NS {
	var all []*netns.NS
	for _, ns := range []*netns.NS{c.Client, c.Server} {
		if own, err := ns.Dup(); err == nil {
			all = append(all, own)
		}
	}
	return all
}

func (c *checked) attach(t *testing.T) {
	t.Helper()
	if err := c.Attach(c.cgroup.Path); err != nil {
		t.Fatal(err)
	}
}

// inside runs fn while the test's process is in the cgroup.
func (c *checked) inside(t *testing.T, fn func()) {
	t.Helper()
	if err := c.cgroup.Enter(); err != nil {
		t.Fatal(err)
	}
	fn()
	if err := c.cgroup.Leave(); err != nil {
		t.Fatal(err)
	}
}

// ends are the addresses of a connection: its own, and its peer's.
type ends [2]netip.AddrPort

func endsOf(c net.Conn) ends { return ends{labtest.Addr(c.LocalAddr()), labtest.Addr(c.RemoteAddr())} }

// reasons lists what is not bounded now.
func (c *checked) reasons(t *testing.T) map[ends]Found {
	t.Helper()
	out := make(map[ends]Found)
	err := c.Unmanaged(t.Context(), func(f *Found) error {
		out[ends{f.Local, f.Remote}] = *f
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// want demands that a connection is listed with a policy and a reason, and with ""
// that it is not.
func (c *checked) want(t *testing.T, ns *netns.NS, end *net.TCPConn, policy string, reason Reason) {
	t.Helper()
	f := c.reasons(t)[endsOf(end)]
	if f.Reason != reason || f.Policy != policy || (reason != "" && f.ID != labtest.ID(t, ns, end)) {
		t.Errorf("%s -> %s: got %+v, want %q of %q", end.LocalAddr(), end.RemoteAddr(), f, reason, policy)
	}
}

// counts is what one scan counts, without what is 0.
func (c *checked) counts(t *testing.T) map[string]Count {
	t.Helper()
	r := c.scan(t.Context())
	if r.Err != nil || r.Namespaces != 2 || r.Ended.IsZero() {
		t.Fatalf("report %+v", r)
	}
	return r.Policies
}

func wantCounts(t *testing.T, got, want map[string]Count) {
	t.Helper()
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("counts (-want +got):\n%s", d)
	}
}

// some is a map of reasons with one or two in it.
func some(pairs ...any) map[Reason]uint64 {
	out := make(map[Reason]uint64)
	for i := 0; i < len(pairs); i += 2 {
		out[pairs[i].(Reason)] = uint64(pairs[i+1].(int))
	}
	return out
}

// adopt makes one pass of adoption over each namespace.
func (c *checked) adopt(t testing.TB) {
	t.Helper()
	for _, ns := range []*netns.NS{c.Client, c.Server} {
		err := ns.Do(func() error {
			_, err := c.Adopt(loader.AdoptOptions{Budget: 1 << 20}, func(loader.Adoption) error { return nil })
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}
