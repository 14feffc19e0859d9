// SPDX-License-Identifier: Apache-2.0

package api

import "testing"

func TestQuota(t *testing.T) {
	q := &quota{users: make(map[uint32]int)}
	var releases []func()
	enter := func(uid uint32, n int, refused bool) {
		t.Helper()
		for i := range n {
			release, over := q.enter(uid)
			if release == nil || over != refused {
				t.Fatalf("user %d, connection %d: refused %v, dropped %v", uid, i, over, release == nil)
			}
			releases = append(releases, release)
		}
	}
	enter(1, maxUserConns, false)
	enter(1, 1, true) // one user's share is used up
	enter(2, maxConns-maxUserConns, false)
	enter(3, maxRefused-1, true) // all places are
	if release, _ := q.enter(3); release != nil {
		t.Error("not dropped over every limit")
	}
	for _, release := range releases {
		release()
		release() // net/http closes twice
	}
	if q.open != 0 || q.refused != 0 || len(q.users) != 0 {
		t.Errorf("left over: %d open, %d refused, users %v", q.open, q.refused, q.users)
	}
}
