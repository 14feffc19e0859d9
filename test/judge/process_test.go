// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"bufio"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/netns"
	"github.com/sockhealth/sockhealth/report"
)

// Names by which the test binary is another process.
const (
	reporterName = "judge-reporter"
	peerName     = "judge-peer"
)

// question is one report, as the reporter gets it on standard input.
type question struct {
	ID      int
	Request report.Request
}

// answer is what came of it, on standard output: moments are of CLOCK_MONOTONIC.
type answer struct {
	ID              int
	Began, Answered int64
	Response        report.Response
	Err             string
}

// reporter reports what it is told to, as applications do.
func reporter() int {
	client := report.Client{Socket: os.Args[1]}
	var mu sync.Mutex // guards standard output
	out := json.NewEncoder(os.Stdout)
	var all sync.WaitGroup
	defer all.Wait()
	for in := json.NewDecoder(bufio.NewReader(os.Stdin)); ; {
		var q question
		if in.Decode(&q) != nil {
			return 0
		}
		all.Go(func() {
			a := answer{ID: q.ID, Began: int64(conn.Now())}
			resp, err := client.Report(context.Background(), q.Request)
			a.Answered = int64(conn.Now())
			if err != nil {
				a.Err = err.Error()
			} else {
				a.Response = *resp
			}
			mu.Lock()
			defer mu.Unlock()
			_ = out.Encode(a)
		})
	}
}

// desk is where applications of one namespace report: a process there.
type desk struct {
	mu      sync.Mutex // guards the fields below
	in      *json.Encoder
	next    int
	waiting map[int]chan<- answer
}

// newDesk starts the process, which ends with the test.
func newDesk(t *testing.T, ns *netns.NS, runDir string) *desk {
	t.Helper()
	cmd := self(t, reporterName, filepath.Join(runDir, "report.sock"))
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	labtest.Start(t, ns, cmd)
	d := &desk{in: json.NewEncoder(in), waiting: map[int]chan<- answer{}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for said := json.NewDecoder(out); ; {
			var a answer
			if said.Decode(&a) != nil {
				return
			}
			d.mu.Lock()
			to := d.waiting[a.ID]
			delete(d.waiting, a.ID)
			d.mu.Unlock()
			to <- a
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-done
		_ = cmd.Wait()
	})
	return d
}

// report sends one report; the answer comes to the channel.
func (d *desk) report(r report.Request) (<-chan answer, error) {
	to := make(chan answer, 1)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.next++
	d.waiting[d.next] = to
	return to, d.in.Encode(question{ID: d.next, Request: r})
}

// self is this program under another name.
func self(t testing.TB, name string, args ...string) *exec.Cmd {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, args...)
	cmd.Args[0] = name
	cmd.Stderr = os.Stderr
	return cmd
}
