// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"encoding/json"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestCalleeArgumentsComeBack(t *testing.T) {
	cfg := calleeConfig{name: "slow call", listen: "10.91.2.2:7100", health: "10.91.2.2:7101", status: 500}
	args := cfg.args()
	if !slices.Equal(args[:2], []string{PeerCommand, callName}) {
		t.Errorf("command %q", args[:2])
	}
	got, err := parseCallee(args[2:])
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(cfg, got, cmp.AllowUnexported(calleeConfig{})); diff != "" {
		t.Error(diff)
	}
}

func TestNoSuchIncident(t *testing.T) {
	for _, args := range [][]string{nil, {"opera"}} {
		if err := Client(t.Context(), args); err == nil || !strings.Contains(err.Error(), "no incident") {
			t.Errorf("client: %v", err)
		}
		if err := Peer(t.Context(), args); err == nil || !strings.Contains(err.Error(), "no incident") {
			t.Errorf("peer: %v", err)
		}
	}
}

// serveCalls ends with its context, whatever it works on, and leaves nothing.
func TestServeCallsEnds(t *testing.T) {
	p := newPipes("peer")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- serveCalls(ctx, p, "peer") }()
	c, err := p.dial()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, r := range []callRequest{{ID: 1, Work: time.Hour}, {ID: 2}} {
		if err := writeLine(c, r); err != nil {
			t.Fatal(err)
		}
	}
	var a callAnswer
	if err := json.NewDecoder(c).Decode(&a); err != nil || a != (callAnswer{ID: 2, Server: "peer"}) {
		t.Errorf("answer %+v, %v", a, err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// sizes counts the writes of a connection.
type sizes struct {
	net.Conn
	all []int
}

func (s *sizes) Write(p []byte) (int, error) {
	s.all = append(s.all, len(p))
	return len(p), nil
}

// The router knows probes by their length.
func TestNoRequestIsAsShortAsAProbe(t *testing.T) {
	var c sizes
	if err := writeLine(&c, callRequest{Body: callBody}); err != nil {
		t.Fatal(err)
	}
	if len(c.all) != 1 || c.all[0] <= bareLen {
		t.Errorf("writes %v, want one of more than %d", c.all, bareLen)
	}
}
