// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sockhealth/sockhealth/internal/conn"
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
		case f.later != "":
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
	for key := range settings {
		if _, ok := peer[key]; !ok {
			t.Errorf("a peer does not know %s", key)
		}
		delete(peer, key)
	}
	for section, want := range map[string]map[string][2]string{"The file": file, "A peer": peer, "Settings": settings} {
		if diff := cmp.Diff(want, documented(t, text, section)); diff != "" {
			t.Errorf("%s, section %q (-code +manual):\n%s", manual, section, diff)
		}
	}
}

// The ranges the manual gives are those that are enforced.
func TestManualRanges(t *testing.T) {
	d := &decoder{}
	for key, f := range expected(d.settingFields(&settings{})) {
		low, high, isRange := strings.Cut(f[1], " to ")
		if !isRange {
			continue
		}
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
}

// tryValue gives one setting and returns the errors.
func tryValue(key, value string) string {
	outer, inner, nested := strings.Cut(key, ".")
	text := outer + ": " + value
	if nested {
		text = outer + ": {" + inner + ": " + value + "}"
	}
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

// What is not supported yet is named, and the limits are the code's.
func TestManualLimits(t *testing.T) {
	text := readManual(t)
	_, later, _ := strings.Cut(text, "\n## Not supported yet\n")
	later, _, _ = strings.Cut(later, "\n## ")
	for key, f := range knownKeys() {
		if name := "`" + key[strings.LastIndexByte(key, '.')+1:] + "`"; f.later != "" && !strings.Contains(later, name) {
			t.Errorf("%s does not say that %s is not supported yet", manual, name)
		}
	}
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
	got := p.Explain(netip.MustParseAddrPort("10.20.1.2:7100"), conn.Outbound).String() + "\n"
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
