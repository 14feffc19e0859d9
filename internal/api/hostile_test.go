// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sockhealth/sockhealth/internal/agent"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
)

// flood has that many clients each send and read until the function has no more.
func flood(t *testing.T, socket string, clients int, next func(i int) string) (answers map[int]int) {
	t.Helper()
	answers = make(map[int]int)
	var mu sync.Mutex
	var all sync.WaitGroup
	for i := range clients {
		all.Go(func() {
			c, err := net.Dial("unix", socket)
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(slack))
			go func() { _, _ = io.WriteString(c, next(i)) }()
			b, _ := io.ReadAll(c)
			var status int
			_, _ = fmt.Sscanf(string(b), "HTTP/1.1 %d ", &status)
			mu.Lock()
			answers[status]++
			mu.Unlock()
		})
	}
	all.Wait()
	return answers
}

func closing(raw string) string {
	return strings.Replace(raw, "Host: x", "Host: x\r\nConnection: close", 1)
}

// heap is what is in use.
func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// A thousand callers who want judgements without waiting: so many are judged as
// the bucket has tokens for, the others are told, and nothing stays.
func TestFloodOfReports(t *testing.T) {
	labtest.NoKernel(t)
	labtest.Root(t)
	var judged atomic.Int64
	s := NewReports(judge(func(context.Context, agent.Report) ([]agent.Result, error) {
		judged.Add(1)
		return []agent.Result{longResult()}, nil
	}), quiet())
	h := reportsOf(s)
	clock := onClock(s)
	still := &hand{}
	h.buckets = newBuckets(still.now)
	socket := serve(t, s, ReportSocket, 0o666)
	rest := runtime.NumGoroutine()
	const clients = 1000
	answers := flood(t, socket, clients, func(int) string { return closing(post("/v1/reports?wait=0", exampleReport)) })
	if n := judged.Load(); n != reportsAtOnce {
		t.Errorf("%d judged, want %d", n, reportsAtOnce)
	}
	// 0: dropped over every limit of connections.
	if answers[202] != reportsAtOnce || answers[202]+answers[429]+answers[503]+answers[0] != clients || answers[429] == 0 {
		t.Errorf("answers by status: %v, want %d of 202, others 429, or 503 or none where too many connect", answers, reportsAtOnce)
	}
	resp, body := exchange(t, socket, post("/v1/reports", exampleReport))
	want := errorBody("too many reports: 50 a second and 200 at once are heard of one user in one network namespace, " +
		`and one without both "local" and "peer" counts as 10; try again in a second`)
	if resp.StatusCode != 429 || body != want || resp.Header.Get("Retry-After") != "1" {
		t.Errorf("status %d, retry %q, body %s, want %s", resp.StatusCode, resp.Header.Get("Retry-After"), body, want)
	}
	var other net.Conn
	asUser(t, someone, func() { other = dial(t, socket) })
	if resp, body := talk(t, other, post("/v1/reports", exampleReport)); resp.StatusCode != 200 {
		t.Errorf("another user meanwhile: status %d, body %s", resp.StatusCode, body)
	}
	other.Close()
	waitFor(t, "the goroutines to end", func() bool { return runtime.NumGoroutine() <= rest+10 })
	clock.wind(keepFor)
	if len(h.kept.byID) != 0 || h.kept.kept != 0 || len(h.buckets.of) != 2 {
		t.Errorf("left: %d ids, %d bytes, %d buckets", len(h.kept.byID), h.kept.kept, len(h.buckets.of))
	}
}

// The report with a peer alone costs as much as ten.
func TestPeerAloneCosts(t *testing.T) {
	labtest.Root(t)
	asked := make(chan seen, 1)
	s := NewReports(watch(asked, nil, nil), quiet())
	still := &hand{}
	reportsOf(s).buckets = newBuckets(still.now)
	c := dial(t, serve(t, s, ReportSocket, 0o666))
	n := 0
	for ; n < 100; n++ {
		resp, body := talk(t, c, post("/v1/reports", `{"peer": "10.20.1.2:7100"}`))
		if resp.StatusCode == http.StatusTooManyRequests {
			break
		}
		if got := <-asked; resp.StatusCode != 200 || body != "{\"results\":[]}\n" || got.Peer.String() != "10.20.1.2:7100" || got.Local.IsValid() || got.Cookie != 0 {
			t.Fatalf("status %d, body %s, asked %+v", resp.StatusCode, body, got)
		}
	}
	if n != reportsAtOnce/costPeer {
		t.Errorf("%d heard, want %d", n, reportsAtOnce/costPeer)
	}
}

// A thousand connections of junk reach no judge, end in an answer or in nothing,
// and leave neither goroutines nor memory behind.
func TestFloodOfJunk(t *testing.T) {
	labtest.NoKernel(t)
	s := NewReports(unreached(t), quiet())
	socket := serve(t, s, ReportSocket, 0o666)
	junk := func(i int) string {
		r := rand.New(rand.NewPCG(1, uint64(i)))
		noise := make([]byte, r.IntN(2*maxBody))
		for k := range noise {
			noise[k] = byte(r.Uint32())
		}
		switch i % 6 {
		case 0:
			return "\r\n" + string(noise) + "\r\n\r\n"
		case 1:
			return closing(post("/v1/reports", string(noise)))
		case 2:
			return closing(post("/v1/reports?wait="+strings.Repeat("9", r.IntN(2000)), exampleReport))
		case 3:
			return closing("GET /v1/judgements/" + strings.Repeat("x", r.IntN(2000)) + "?wait=x HTTP/1.1\r\nHost: x\r\n\r\n")
		case 4:
			return closing(post("/v1/reports", strings.Repeat("[", r.IntN(maxBody))))
		}
		return closing(post("/v1/reports", `{"`+strings.Repeat("a", r.IntN(maxBody))+`": 1}`))
	}
	flood(t, socket, 100, junk) // whatever is allocated once
	rest, before := runtime.NumGoroutine(), heap()
	var answers map[int]int
	for range 3 {
		answers = flood(t, socket, labtest.Fewer(1000), junk)
	}
	for status := range answers {
		switch status {
		case 0, 400, 413, 431, 503:
		default:
			t.Errorf("junk is answered with %d", status)
		}
	}
	waitFor(t, "the goroutines to end", func() bool { return runtime.NumGoroutine() <= rest+10 })
	if after := heap(); after > before+8<<20 {
		t.Errorf("the heap grew from %d to %d bytes", before, after)
	}
}

// However many reports come, memory stays as it was.
func TestMemoryIsFlat(t *testing.T) {
	labtest.NoKernel(t)
	labtest.Root(t)
	s := NewReports(judge(func(context.Context, agent.Report) ([]agent.Result, error) {
		return []agent.Result{longResult()}, nil
	}), quiet())
	clock := onClock(s)
	reportsOf(s).buckets = newBuckets(func() time.Duration { return time.Duration(time.Now().UnixNano()) * 1000 })
	c := dial(t, serve(t, s, ReportSocket, 0o666))
	round := func(n int) {
		for i := range n {
			if resp, body := talk(t, c, post("/v1/reports?wait=0", exampleReport)); resp.StatusCode != 202 {
				t.Fatalf("status %d, body %s", resp.StatusCode, body)
			}
			if i%100 == 99 {
				clock.wind(keepFor)
			}
		}
	}
	round(1000)
	before := heap()
	round(labtest.Fewer(20_000))
	clock.wind(keepFor)
	if after := heap(); after > before+2<<20 {
		t.Errorf("the heap grew from %d to %d bytes over them", before, after)
	}
}
