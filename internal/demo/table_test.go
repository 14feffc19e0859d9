// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"bytes"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden files")

// results are one in which all holds and one in which some figures of both
// incidents do not.
func results() map[string]*Result {
	broken := asMeasured()
	broken[0].requests[1] = wellAt(38)
	broken[5].gone = never
	broken[5].stale = 3
	calls := callsAsMeasured()
	calls[caseSlow] = deadRecord("dead_path", "")
	calls[caseNone].counts[0] = 2
	return map[string]*Result{
		"held":     {Incidents: []Incident{*judged(asMeasured()), *judgedCalls(callsAsMeasured())}},
		"not_held": {Incidents: []Incident{*judged(broken), *judgedCalls(calls)}},
	}
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s (-want +got):\n%s", path, diff)
	}
}

func TestTable(t *testing.T) {
	for name, result := range results() {
		var b bytes.Buffer
		if err := WriteTable(&b, result); err != nil {
			t.Fatal(err)
		}
		golden(t, name+".txt", b.Bytes())
	}
}

// broken is a writer that takes nothing.
type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

func TestBrokenWriter(t *testing.T) {
	result := results()["held"]
	if err := WriteTable(brokenWriter{}, result); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("table: %v", err)
	}
	if err := WriteJSON(brokenWriter{}, result); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("json: %v", err)
	}
}
