// SPDX-License-Identifier: Apache-2.0

package report

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// answering is an agent that answers one request after the other with the next
// status and body, and keeps what it was asked.
func answering(t *testing.T, asked *[]string, answers ...any) string {
	return agent(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		n := len(*asked)
		*asked = append(*asked, r.Method+" "+r.URL.String()+" "+string(b))
		w.WriteHeader(answers[2*n].(int))
		_ = json.NewEncoder(w).Encode(answers[2*n+1])
	})
}

func TestSubmitAndResult(t *testing.T) {
	var asked []string
	want := Response{Results: []Result{{Verdict: "dead_path", Action: "closed"}}}
	c := Client{Socket: answering(t, &asked,
		202, Pending{"ABC"},
		202, Pending{"ABC"}, // under way: asked again
		200, want,
		404, Error{"no such judgement"})}
	id, err := c.Submit(t.Context(), Request{Peer: "10.20.1.2:7100", ElapsedMS: 2000})
	if err != nil || id != "ABC" {
		t.Fatalf("got %q, %v", id, err)
	}
	got, err := c.Result(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(&want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	_, err = c.Result(t.Context(), "../x?y")
	var refused *StatusError
	if !errors.As(err, &refused) || refused.Status != 404 {
		t.Errorf("got %v, want a *StatusError with 404", err)
	}
	if want := "fetch judgement from sockhealth agent: report refused with status 404: no such judgement"; err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
	if d := cmp.Diff([]string{
		`POST /v1/reports?wait=0 {"peer":"10.20.1.2:7100","elapsed_ms":2000}`,
		"GET /v1/judgements/ABC?wait=60000 ", "GET /v1/judgements/ABC?wait=60000 ",
		"GET /v1/judgements/..%2Fx%3Fy?wait=60000 ",
	}, asked); d != "" {
		t.Errorf("asked (-want +got):\n%s", d)
	}
}

func TestSubmitRefused(t *testing.T) {
	var asked []string
	c := Client{Socket: answering(t, &asked, 429, Error{"too many"}, 200, Response{})}
	_, err := c.Submit(t.Context(), Request{})
	var refused *StatusError
	if !errors.As(err, &refused) || refused.Status != 429 {
		t.Errorf("got %v, want a *StatusError with 429", err)
	}
	if _, err = c.Submit(t.Context(), Request{}); err == nil { // an agent that cannot
		t.Error("no error without an id")
	}
	c.Socket += "x"
	if _, err = c.Submit(t.Context(), Request{}); !errors.Is(err, ErrUnreachable) {
		t.Errorf("got %v, want ErrUnreachable", err)
	}
}

func TestResultEndsWithItsContext(t *testing.T) {
	path := agent(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := (&Client{Socket: path}).Result(ctx, "ABC"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want DeadlineExceeded", err)
	}
}
