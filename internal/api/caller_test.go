// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/agent"
	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/netns"
	"github.com/sockhealth/sockhealth/report"
)

// seen is what a judge was asked, without what it may only borrow.
type seen struct {
	agent.Report
	inode uint32
}

// watch is a judge that tells what it was asked, and answers so.
func watch(asked chan<- seen, results []agent.Result, err error) judge {
	return func(_ context.Context, r agent.Report) ([]agent.Result, error) {
		asked <- seen{r, r.Caller.NS.Inode()}
		return results, err
	}
}

// asUser runs fn on a thread with another effective user.
func asUser(t *testing.T, uid int, fn func()) {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // until the thread is itself again, or for good
		if err := setEUID(uid); err != nil {
			done <- err
			return
		}
		fn()
		err := setEUID(0)
		if err == nil {
			runtime.UnlockOSThread()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// setEUID changes the calling thread alone; syscall.Setresuid changes all.
func setEUID(uid int) error {
	const keep = ^uintptr(0)
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, keep, uintptr(uid), keep); errno != 0 {
		return fmt.Errorf("setresuid to %d: %w", uid, errno)
	}
	return nil
}

// dial connects as it is told and sends the example report.
func dial(t *testing.T, socket string) net.Conn {
	c, err := net.Dial("unix", socket)
	if err != nil {
		t.Error(err)
		return nil
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// Who calls is what the kernel says: namespace, user and process of the client.
func TestCallerComesFromTheKernel(t *testing.T) {
	labtest.Root(t)
	asked := make(chan seen, 1)
	socket := serve(t, NewReports(watch(asked, nil, nil), quiet()), ReportSocket, 0o666)
	own, err := netns.Current()
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	other := labtest.Netns(t)
	for _, tc := range []struct {
		name    string
		connect func() (c net.Conn)
		inode   uint32
		uid     uint32
	}{
		{"as we are", func() net.Conn { return dial(t, socket) }, own.Inode(), 0},
		{"another namespace", func() (c net.Conn) {
			if err := other.Do(func() error { c = dial(t, socket); return nil }); err != nil {
				t.Fatal(err)
			}
			return c
		}, other.Inode(), 0},
		{"another user", func() (c net.Conn) {
			asUser(t, 12345, func() { c = dial(t, socket) })
			return c
		}, own.Inode(), 12345},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := tc.connect()
			before := conn.Now()
			resp, body := talk(t, c, post("/v1/reports", exampleReport))
			after := conn.Now()
			if resp.StatusCode != 200 || body != "{\"results\":[]}\n" {
				t.Fatalf("status %d, body %s", resp.StatusCode, body)
			}
			got := <-asked
			if got.inode != tc.inode || got.Caller.UID != tc.uid || got.Caller.PID != int32(os.Getpid()) {
				t.Errorf("caller is netns %d, user %d, pid %d; want %d, %d, %d",
					got.inode, got.Caller.UID, got.Caller.PID, tc.inode, tc.uid, os.Getpid())
			}
			if got.Local.String() != "10.1.1.1:40122" || got.Peer.String() != "10.20.1.2:7100" || got.Cookie != 0 {
				t.Errorf("asked about %s, %s, cookie %d", got.Local, got.Peer, got.Cookie)
			}
			if sent := got.Sent + 2*time.Second; sent < before || sent > after {
				t.Errorf("sent at %s, want 2s before a moment from %s to %s", got.Sent, before, after)
			}
			waitFor(t, "the namespace to be let go of", func() bool { return got.Caller.NS.FD() == -1 })
		})
	}
}

// Several reports may come by one connection.
func TestReportsKeepAlive(t *testing.T) {
	labtest.Root(t)
	asked := make(chan seen, 2)
	socket := serve(t, NewReports(watch(asked, nil, nil), quiet()), ReportSocket, 0o666)
	c := dial(t, socket)
	for range 2 {
		resp, _ := talk(t, c, post("/v1/reports", exampleReport))
		if resp.StatusCode != 200 {
			t.Fatalf("status %d", resp.StatusCode)
		}
		<-asked
	}
}

func TestReportsNotJudged(t *testing.T) {
	labtest.Root(t)
	for _, tc := range []struct {
		err    error
		status int
		retry  string
		want   string
	}{
		{fmt.Errorf("judge report: %w", agent.ErrBusy), 503, "1", "the agent is busy with other reports: try again in a second"},
		{fmt.Errorf("judge report: %w", agent.ErrStopped), 503, "1", "the agent is stopping: try again when it is back"},
		{fmt.Errorf("judge report: %w", agent.ErrForbidden), 403, "", "the agent does not serve your network namespace: its --netns does not cover it [start it with --netns all, or with this namespace among its paths]"},
		{errors.New("secret of another user"), 500, "", "the agent could not judge the socket: see its log"},
	} {
		t.Run(tc.err.Error(), func(t *testing.T) {
			asked := make(chan seen, 1)
			socket := serve(t, NewReports(watch(asked, []agent.Result{{Policy: "x"}}, tc.err), quiet()), ReportSocket, 0o666)
			resp, body := exchange(t, socket, post("/v1/reports", exampleReport))
			if resp.StatusCode != tc.status || body != errorBody(tc.want) || resp.Header.Get("Retry-After") != tc.retry {
				t.Errorf("status %d, retry %q, body %s", resp.StatusCode, resp.Header.Get("Retry-After"), body)
			}
		})
	}
}

// A judgement outlasts every deadline of the server, and a client that goes
// away ends its wait.
func TestReportsWait(t *testing.T) {
	labtest.Root(t)
	release, asked, ended := make(chan struct{}), make(chan struct{}, 2), make(chan error, 1)
	s := NewReports(judge(func(ctx context.Context, _ agent.Report) ([]agent.Result, error) {
		asked <- struct{}{}
		select {
		case <-release:
			return []agent.Result{{Verdict: "alive", Action: "none"}}, nil
		case <-ctx.Done():
			ended <- ctx.Err()
			return nil, ctx.Err()
		}
	}), quiet())
	const short = time.Second
	s.http.ReadTimeout, s.http.ReadHeaderTimeout = short, short
	socket := serve(t, s, ReportSocket, 0o666)
	time.AfterFunc(2*short, func() { close(release) })
	resp, err := (&report.Client{Socket: socket}).Report(t.Context(), report.Request{Cookie: 71})
	if err != nil || len(resp.Results) != 1 || resp.Results[0].Verdict != "alive" {
		t.Fatalf("got %+v, %v", resp, err)
	}

	<-asked
	release = make(chan struct{})
	ctx, cancel := context.WithTimeout(t.Context(), slack)
	defer cancel()
	go func() {
		select {
		case <-asked:
			cancel()
		case <-ctx.Done():
		}
	}()
	if _, err := (&report.Client{Socket: socket}).Report(ctx, report.Request{Cookie: 71}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	select {
	case err := <-ended:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("the judge's context ended with %v", err)
		}
	case <-time.After(slack):
		t.Error("the judge was not told that its client went away")
	}
}

// One user who takes every place it can get does not keep another one out.
func TestUsersDoNotShutEachOtherOut(t *testing.T) {
	labtest.Root(t)
	asked := make(chan seen, 1)
	s := NewReports(watch(asked, nil, nil), quiet())
	s.waitLong()
	socket := serve(t, s, ReportSocket, 0o666)
	asUser(t, 12345, func() {
		for range maxConns {
			dial(t, socket)
		}
	})
	waitFor(t, "the places to be taken", func() bool {
		open, refused := s.quota.counts()
		return open == maxUserConns && refused == maxRefused
	})
	resp, body := exchange(t, socket, post("/v1/reports", exampleReport))
	if resp.StatusCode != http.StatusOK {
		t.Errorf("status %d, body %s", resp.StatusCode, body)
	}
}
