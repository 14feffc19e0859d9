// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/sockhealth/sockhealth/internal/container"
	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/verdict"
)

// people are containers by the ids of their cgroups.
type people map[uint64]container.ID

func (p people) Of(cgroup uint64) container.ID { return p[cgroup] }

// told are events, one after the other.
type told []loader.Event

func (e *told) Next() (loader.Event, error) {
	if len(*e) == 0 {
		return loader.Event{}, fmt.Errorf("read event: %w", loader.ErrClosed)
	}
	first := (*e)[0]
	*e = (*e)[1:]
	return first, nil
}

// Verdicts and ends are told with the container that the socket lives in, and the
// namespaces of reports and events are passed on.
func TestWhere(t *testing.T) {
	bubble(t, "container", func(t *testing.T, w *world, a *Agent) {
		var log bytes.Buffer
		var seen []uint32
		a.Log = slog.New(slog.NewJSONHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
		a.Containers = people{71: {Container: "c0ffee", Pod: "a-pod"}, 72: {Container: "decade"}}
		a.Seen = func(inode uint32) { seen = append(seen, inode) }
		id := w.add(1, 10*time.Second, func(int) bool { return true })
		w.sockets[1].snap.Cgroup = 71
		if r := judgeOne(t, a, w.report(id, 0)); r.Verdict != verdict.AliveSlow || r.Cgroup != 71 {
			t.Errorf("result %+v", r)
		}
		end, host := id, id
		end.Netns, host.Netns = 4242, 4243
		if err := a.Follow(&told{
			{ID: end, Cause: loader.CauseIdle, Cgroup: 72}, {ID: host, Stall: true, Cgroup: 73}, {ID: host, Cause: loader.CauseReset},
		}); err != nil {
			t.Fatal(err)
		}

		want := []container.ID{{Container: "c0ffee", Pod: "a-pod"}, {Container: "decade"}, {}, {}}
		var logged []container.ID
		for dec := json.NewDecoder(&log); dec.More(); {
			var line struct {
				Container *string `json:"container_id"`
				Pod       *string `json:"pod_uid"`
			}
			if err := dec.Decode(&line); err != nil {
				t.Fatal(err)
			}
			if line.Container == nil || line.Pod == nil {
				t.Fatal("a line of the log lacks container_id or pod_uid: its keys are fixed")
			}
			logged = append(logged, container.ID{Container: *line.Container, Pod: *line.Pod})
		}
		var kept []container.ID
		for _, e := range Entries(a, 0) {
			kept = append(kept, e.Container)
		}
		if !slices.Equal(kept, want) || !slices.Equal(logged, want) {
			t.Errorf("journal %+v, log %+v, want %+v", kept, logged, want)
		}
		if !slices.Equal(seen, []uint32{w.ns.Inode(), 4242, 4243, 4243}) {
			t.Errorf("namespaces %d were passed on", seen)
		}
	})
}
