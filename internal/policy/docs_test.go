// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const manual = "../../docs/policy.md"

func readManual(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile(manual)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// documented returns, for each key of a section's table, its default and
// range.
func documented(t *testing.T, text, section string) map[string][2]string {
	t.Helper()
	_, text, ok := strings.Cut(text, "\n## "+section+"\n")
	if !ok {
		t.Fatalf("%s has no section %q", manual, section)
	}
	text, _, _ = strings.Cut(text, "\n## ")
	rows := make(map[string][2]string)
	for line := range strings.Lines(text) {
		cells := strings.Split(strings.TrimSpace(line), " | ")
		key, isKey := strings.CutPrefix(cells[0], "| `")
		if !isKey || len(cells) != 5 {
			continue
		}
		rows[strings.TrimSuffix(key, "`")] = [2]string{cells[2], cells[3]}
	}
	return rows
}

// expected flattens fields as the manual lists them.
func expected(fields []field) map[string][2]string {
	rows := make(map[string][2]string)
	for _, f := range fields {
		switch {
		case f.sub != nil:
			rows[f.name] = [2]string{"-", "-"}
			for key, row := range expected(f.sub) {
				rows[f.name+"."+key] = row
			}
		case f.def == "":
			rows[f.name] = [2]string{"required", f.want}
		default:
			rows[f.name] = [2]string{f.def, f.want}
		}
	}
	return rows
}

// Every key the decoder knows stands in the manual with its default and range,
// and no other.
func TestManualKeys(t *testing.T) {
	text := readManual(t)
	d := &decoder{}
	file := expected(d.fileFields(&file{}))
	for key := range file {
		if strings.HasPrefix(key, "defaults.") {
			delete(file, key)
		}
	}
	settings := expected(d.settingFields(&settings{}))
	peer := expected(d.peerFields(&entry{}))
	app := make(map[string][2]string)
	for key, row := range peer {
		if strings.HasPrefix(key, "app_probe.") {
			app[key] = row
			delete(peer, key)
		}
	}
	for key := range settings {
		if _, ok := peer[key]; !ok {
			t.Errorf("a peer does not know %s", key)
		}
		delete(peer, key)
	}
	for section, want := range map[string]map[string][2]string{
		"The file": file, "A peer": peer, "Settings": settings, "The application probe": app,
	} {
		if diff := cmp.Diff(want, documented(t, text, section)); diff != "" {
			t.Errorf("%s, section %q (-code +manual):\n%s", manual, section, diff)
		}
	}
}

// The ranges the manual gives are those that are enforced.
func TestManualRanges(t *testing.T) {
	ranges := 0
	for key, f := range expected((&decoder{}).peerFields(&entry{})) {
		low, high, isRange := strings.Cut(strings.TrimPrefix(f[1], "off, "), " to ")
		if !isRange || f[0] == "required" || key == "ports" || strings.HasSuffix(high, " bytes") {
			continue // not one value; refused by other words
		}
		ranges++
		for _, value := range []string{low, high} {
			// Alone it may not fit the other defaults, but it is in range.
			if problems := tryValue(key, value); strings.Contains(problems, "raise it to") || strings.Contains(problems, "lower it to") {
				t.Errorf("%s: %s is refused: %s", key, value, problems)
			}
		}
		for _, value := range []string{beside(low, -1), beside(high, 1)} {
			if problems := tryValue(key, value); !strings.Contains(problems, "raise it to "+low+" or more") &&
				!strings.Contains(problems, "lower it to "+high+" or less") {
				t.Errorf("%s: %s is not refused: %s", key, value, problems)
			}
		}
	}
	if ranges < 11 {
		t.Errorf("found %d ranges to try", ranges)
	}
}

// tryValue gives one setting and returns the errors.
func tryValue(key, value string) string {
	keys := strings.Split(key, ".")
	text := strings.Join(keys, ": {") + ": " + value + strings.Repeat("}", len(keys)-1)
	_, err := Parse("p", []byte(head+"  - {name: a, cidrs: [10.0.0.0/8], "+text+"}\n"))
	if err == nil {
		return ""
	}
	return err.Error()
}

// beside changes the number in front of a unit.
func beside(value string, by int) string {
	var n int
	var unit string
	fmt.Sscanf(value, "%d%s", &n, &unit)
	if unit == "m" {
		n, unit = 60*n, "s"
	}
	return fmt.Sprintf("%d%s", n+by, unit)
}

// The limits of a file are the code's.
func TestManualLimits(t *testing.T) {
	text := readManual(t)
	_, refused, _ := strings.Cut(text, "\n## What is refused\n")
	for _, want := range []string{
		fmt.Sprintf("More than %d rules", MaxRules), fmt.Sprintf("than %d peers", MaxPeers),
		fmt.Sprintf("than %d different prefixes", MaxPrefixes), fmt.Sprintf("than %d bytes", MaxSize),
	} {
		if !strings.Contains(refused, want) {
			t.Errorf("%s does not say %q", manual, want)
		}
	}
}

// The limits of what is sent are those that the manual gives, and its probes
// are right.
func TestManualAppProbe(t *testing.T) {
	text := readManual(t)
	_, text, _ = strings.Cut(text, "\n## The application probe\n")
	text, _, _ = strings.Cut(text, "\n## ")
	_, probes, _ := strings.Cut(text, "```yaml\n")
	probes, _, _ = strings.Cut(probes, "```")
	kinds := make(map[AppKind]bool)
	for _, peer := range mustParse(t, "version: 1\n"+probes).Peers {
		if peer.AppProbe == nil {
			t.Errorf("%s shows %s without a probe", manual, peer.Name)
			continue
		}
		kinds[peer.AppProbe.Kind] = true
	}
	if !kinds[AppHTTP] || !kinds[AppGRPC] || !kinds[AppSend] {
		t.Errorf("%s shows the kinds %v only", manual, kinds)
	}
	for _, want := range []string{
		fmt.Sprintf("at most %d bytes", maxPath), fmt.Sprintf("at most %d bytes", maxService), fmt.Sprintf("1 to %d bytes", maxSend),
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%s does not say %q", manual, want)
		}
	}
}

// The manual's policy is right, and what it says policy explain prints is what
// it prints. With -update it is written anew.
func TestManualExample(t *testing.T) {
	text := readManual(t)
	_, rest, _ := strings.Cut(text, "```yaml\n")
	example, _, _ := strings.Cut(rest, "```")
	p := mustParse(t, example)
	const begin, end = "says:\n\n```\n", "```\n"
	before, rest, ok := strings.Cut(text, begin)
	shown, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		t.Fatalf("%s shows no explanation", manual)
	}
	got := p.Explain(netip.MustParseAddrPort("10.20.1.2:7100")).String() + "\n"
	if *update {
		if err := os.WriteFile(manual, []byte(before+begin+got+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(shown, got); diff != "" {
		t.Errorf("%s (-manual +code):\n%s", manual, diff)
	}
}

// What the manual and the README say about an application's own values, and about
// the outage that costs nothing, is what the programs and the defaults do.
func TestManualFigures(t *testing.T) {
	b, err := os.ReadFile("../../bpf/options.h")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(b), "#define SH_MIN_ROOM ")
	var minRoom int
	if _, err := fmt.Sscanf(rest, "%d\n", &minRoom); !ok || err != nil {
		t.Fatalf("bpf/options.h has no SH_MIN_ROOM: %v", err)
	}
	peer := &mustParse(t, head+"  - {name: a, cidrs: [10.0.0.0/8]}\n").Peers[0]
	o := peer.Options
	// sh_tighten, where the application sets a user timeout and a count. It
	// agrees with the programs by loader's TestTightenOracle.
	tightened := func(timeout time.Duration, count int) (user, idle, interval time.Duration) {
		room := time.Duration(max(count, min(o.Count, minRoom)))
		need := o.Idle + room*o.Interval
		scale := func(d time.Duration) time.Duration {
			return max(time.Duration(int64(d/time.Second)*int64(timeout)/int64(need))*time.Second, time.Second)
		}
		idle, interval = scale(o.Idle), scale(o.Interval)
		return max(timeout, idle+room*interval), idle, interval
	}
	user, idle, interval := tightened(3*time.Second, o.Count)
	few, _, _ := tightened(3*time.Second, 1)
	survives := peer.Figures().SurvivesReport.Seconds()
	answer := (peer.Probe.Window - peer.Figures().SurvivesReport).Milliseconds()
	for file, wants := range map[string][]string{
		manual: {
			fmt.Sprintf("at least for %d or the policy's count", minRoom),
			fmt.Sprintf("a user timeout of 3s gets %s, idle %s and interval %s; one that sets a count of 1 besides gets %s", user, idle, interval, few),
		},
		"../../README.md": {
			fmt.Sprintf("over %d ms before the probe window ends (%g s after the report by default)", answer, survives),
		},
	} {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		text := strings.Join(strings.Fields(string(b)), " ") // lines may break anywhere
		for _, want := range wants {
			if !strings.Contains(text, want) {
				t.Errorf("%s does not say %q", file, want)
			}
		}
	}
}
