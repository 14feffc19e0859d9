// SPDX-License-Identifier: Apache-2.0

package cases

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/api"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/test/cases/ancestor"
)

// TestUpgradeAgent: an agent whose records are shorter bounds many connections; the next
// start, of this build, goes on with every record: what the application asked for
// and what bounds it, to the last that a policy which names it no more gives back.
func TestUpgradeAgent(t *testing.T) {
	labtest.Root(t)
	needAdopt(t)
	n := newNode(t, 1, beforePolicy)
	labtest.Enter(t, n.cgroup)
	old := n.launch(t, olderBuild(t))
	old.await(t)
	all := n.openMany(t, labtest.Fewer(500)*len(givenBefore)/(len(givenBefore)-1)+1) // one port in four is nobody's
	wantGiven(t, "as they opened", all, givenBefore)
	old.stop(t)

	a := n.start(t)
	named := make(map[string]*live)
	for _, c := range all {
		if c.port != 3 {
			named[c.LocalAddr().String()+c.RemoteAddr().String()] = c
		}
	}
	if said := a.words(); !strings.Contains(said, fmt.Sprintf(`"records_converted":%d}`, len(named))) || len(a.complaints()) > 0 {
		t.Errorf("of %d records the agent says:\n%s", len(named), said)
	}
	list, err := n.admin.Sockets(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(list.Sockets) != len(named) {
		t.Errorf("%d connections have a record, want %d", len(list.Sockets), len(named))
	}
	for _, s := range list.Sockets {
		wantRecord(t, &s, named[s.Local+s.Peer])
	}
	// Nothing was adopted anew, and everything is as it was.
	for _, name := range []string{"shorter", "longer", "gone"} {
		if p := n.peer(t, name); p.Adopted != 0 || p.Opened == 0 {
			t.Errorf("after the upgrade: %+v", p)
		}
	}
	wantGiven(t, "after the upgrade", all, givenBefore)
	labtest.Setsockopt(t, all[0].TCPConn, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 0)
	wantGiven(t, "after one has spoken", all, givenBefore)
	n.bring(t, "after the change", afterPolicy, all, givenAfter)
	n.wantHealthy(t)
	a.stop(t)
}

// wantRecord: it is that of the connection.
func wantRecord(t *testing.T, s *api.Socket, c *live) {
	t.Helper()
	if c == nil {
		t.Fatalf("a record of nobody's connection: %+v", s)
	}
	want := asked[c.wish]
	if s.App.KeepAlive != want.KeepAlive || s.App.IdleS != int64(want.Idle.Seconds()) || s.App.Count != want.Count ||
		s.App.UserTimeoutMS != want.UserTimeout.Milliseconds() || s.Policed.UserTimeoutMS != policed.UserTimeout.Milliseconds() {
		t.Fatalf("record %+v, asked for %+v", s, want)
	}
}

// olderBuild is an agent whose records are shorter: the one beside the tests, or one
// that is built.
func olderBuild(t *testing.T) string {
	t.Helper()
	if path, ok := labtest.Beside("sockhealth-older"); ok {
		return path
	}
	if labtest.Without("go") {
		t.Skip("needs go, to build an agent of another layout")
	}
	module, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "sockhealth-older")
	if err := ancestor.Build(t.Context(), module, path); err != nil {
		t.Fatal(err)
	}
	return path
}
