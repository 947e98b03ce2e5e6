package tests

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// answers are the columns of "In numbers" after the number of rows, by the words of
// "Row by row".
var answers = []string{"built", "partly", "not built", "removed in v1.36", "document only", "Windows", "cloud"}

var (
	chapterLine = regexp.MustCompile(`^### (([A-G]): .+)$`)
	oneRow      = regexp.MustCompile(`^(\w+)-(\d+)(?:\.\.(\d+))?$`)
)

// TestCompatibilityAddsUp: in docs/compatibility.md each row of the inventory has one
// answer, and "In numbers" counts them.
func TestCompatibilityAddsUp(t *testing.T) {
	text, err := os.ReadFile("../docs/compatibility.md")
	if err != nil {
		t.Fatal(err)
	}
	numbers, rows, found := strings.Cut(string(text), "\n## Row by row\n")
	if !found {
		t.Fatal("there is no part \"Row by row\"")
	}
	all := map[string]int{}
	for chapter, counts := range countRows(t, rows) {
		for a, n := range counts {
			all[a] += n
		}
		if want := numbersOf(chapter, counts); !strings.Contains(numbers, "\n"+want+"\n") {
			t.Errorf("\"In numbers\" has to say:\n%s", want)
		}
	}
	if want := numbersOf("all", all); !strings.Contains(numbers, "\n"+want+"\n") {
		t.Errorf("\"In numbers\" has to say:\n%s", want)
	}
}

// countRows counts answers by chapter.
func countRows(t *testing.T, text string) map[string]map[string]int {
	t.Helper()
	counts := map[string]map[string]int{}
	chapter := ""
	var answered map[string]string // by row
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if m := chapterLine.FindStringSubmatch(line); m != nil {
			chapter, counts[m[1]], answered = m[1], map[string]int{}, map[string]string{}
		}
		cells := strings.Split(line, "|")
		if len(cells) < 4 || strings.HasPrefix(cells[1], "---") || cells[1] == " rows " {
			continue
		}
		answer := strings.TrimSpace(cells[2])
		for _, id := range rowsOf(t, cells[1]) {
			if before := answered[id]; before != "" {
				t.Errorf("%s of %q is answered twice: %s and %s", id, chapter, before, answer)
			}
			answered[id] = answer
			counts[chapter][answer]++
		}
	}
	return counts
}

// rowsOf lists the rows that a cell names: "API-2, API-5..7".
func rowsOf(t *testing.T, cell string) (ids []string) {
	t.Helper()
	for part := range strings.SplitSeq(cell, ",") {
		m := oneRow.FindStringSubmatch(strings.TrimSpace(part))
		if m == nil {
			t.Errorf("%q is no row", part)
			continue
		}
		first, _ := strconv.Atoi(m[2])
		last := first
		if m[3] != "" {
			last, _ = strconv.Atoi(m[3])
		}
		for i := first; i <= last; i++ {
			ids = append(ids, fmt.Sprintf("%s-%d", m[1], i))
		}
	}
	return ids
}

func numbersOf(name string, counts map[string]int) string {
	rows, cells := 0, ""
	for _, a := range answers {
		rows += counts[a]
		cells += fmt.Sprintf(" | %d", counts[a])
	}
	return fmt.Sprintf("| %s | %d%s |", name, rows, cells)
}
