// SPDX-License-Identifier: Apache-2.0

package api

import (
	"net/http"
	"testing"

	"github.com/sockhealth/sockhealth/internal/lab/labtest"
)

func TestQuota(t *testing.T) {
	q := newQuota()
	var releases []func()
	enter := func(who identity, n int, refused bool) {
		t.Helper()
		for i := range n {
			release, over := q.enter(who)
			if release == nil || over != refused {
				t.Fatalf("%+v, connection %d: refused %v, dropped %v", who, i, over, release == nil)
			}
			releases = append(releases, release)
		}
	}
	enter(identity{1, 1}, maxUserConns, false)
	enter(identity{1, 1}, 1, true)            // one user's share is used up
	enter(identity{2, 1}, 100, false)         // not its neighbour's
	enter(identity{1, 2}, 100, false)         // nor the same user's elsewhere
	enter(identity{1, 1}, maxRefused-1, true) // all that can be told are
	if release, _ := q.enter(identity{1, 1}); release != nil {
		t.Error("not dropped over every limit")
	}
	for _, release := range releases {
		release()
		release() // net/http closes twice
	}
	if q.open != 0 || q.refused != 0 || len(q.users) != 0 || len(q.netns) != 0 || q.over != maxRefused+1 {
		t.Errorf("left over: %+v", q)
	}
}

// Whatever users a namespace has, it holds half; and where three take all they can, a
// fourth finds room.
func TestQuotaOfNamespaces(t *testing.T) {
	q := newQuota()
	for netns := range uint32(3) {
		for uid := range uint32(3 * maxConns) {
			q.enter(identity{uid, netns})
		}
	}
	if q.netns[0] != maxNetnsConns || q.netns[1] != maxNetnsConns/2 || q.netns[2] != maxNetnsConns/4 {
		t.Errorf("they hold %v", q.netns)
	}
	for i := range 30 {
		if release, over := q.enter(identity{0, 9}); release == nil || over {
			t.Fatalf("connection %d of a fourth: refused", i)
		}
	}
}

// Root of one container, as whatever users, does not keep root of another out.
func TestNamespacesDoNotShutEachOtherOut(t *testing.T) {
	labtest.Root(t)
	asked := make(chan seen, 1)
	s := NewReports(watch(asked, nil, nil), quiet())
	s.waitLong()
	socket := serve(t, s, ReportSocket, 0o666)
	greedy, modest := labtest.Netns(t), labtest.Netns(t)
	for _, uid := range []int{0, someone, someone + 1} {
		if err := greedy.Do(func() error {
			if err := setEUID(uid); err != nil {
				return err
			}
			for range maxConns / 2 {
				dial(t, socket)
			}
			return setEUID(0)
		}); err != nil {
			t.Fatal(err)
		}
	}
	waitFor(t, "the places to be taken", func() bool {
		got := s.Stats()
		return got.Open+int(got.Refused) == 3*maxConns/2
	})
	if got := s.Stats(); got.Open > maxNetnsConns {
		t.Errorf("%d connections of one namespace, want at most %d", got.Open, maxNetnsConns)
	}
	for _, uid := range []int{0, someone + 2} {
		c := dialFromAs(t, modest, uid, socket)
		if resp, body := talk(t, c, post("/v1/reports", exampleReport)); resp.StatusCode != http.StatusOK {
			t.Errorf("user %d: status %d, body %s", uid, resp.StatusCode, body)
		}
		<-asked
	}
}
