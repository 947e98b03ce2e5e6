package tests

import (
	"go/ast"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// TestGuidesNameWhatThereIs: the architecture and the walks that show how to add
// something lead to files, names, tests and make targets that exist.
func TestGuidesNameWhatThereIs(t *testing.T) {
	tree := readTree(t)
	guides, err := filepath.Glob("../docs/adding-*.md")
	if err != nil || len(guides) == 0 {
		t.Fatalf("no guides: %v", err)
	}
	for _, guide := range append(guides, "../docs/architecture.md") {
		text := readDoc(t, guide)
		for _, m := range ticked.FindAllStringSubmatch(text, -1) {
			if why := tree.lacks(m[1]); why != "" {
				t.Errorf("%s: `%s`: %s", guide, m[1], why)
			}
		}
	}
}

// TestDocsLeadSomewhere: links of all documents lead to files and headings that
// exist, and paths of the tree between backticks to what is there.
func TestDocsLeadSomewhere(t *testing.T) {
	tree := readTree(t)
	docs, err := filepath.Glob("../docs/*.md")
	if err != nil || len(docs) == 0 {
		t.Fatalf("no documents: %v", err)
	}
	for _, doc := range append(docs, "../README.md", "../SCOPE.md", "../CHANGELOG.md") {
		text := readDoc(t, doc)
		for _, m := range linked.FindAllStringSubmatch(ticked.ReplaceAllString(text, "x"), -1) {
			if why := brokenLink(t, doc, m[1]); why != "" {
				t.Errorf("%s: link to %s: %s", doc, m[1], why)
			}
		}
		for _, m := range ticked.FindAllStringSubmatch(text, -1) {
			if top, _, below := strings.Cut(m[1], "/"); below && tops[top] && aFile.MatchString(m[1]) {
				if why := tree.lacksFile(strings.TrimSuffix(m[1], "/")); why != "" {
					t.Errorf("%s: `%s`: %s", doc, m[1], why)
				}
			}
		}
	}
}

// tops are the directories that paths of the tree begin with.
var tops = map[string]bool{
	"agent": true, "coordinator": true, "cni": true, "tests": true, "hack": true, "docs": true, "systemd": true,
}

func readDoc(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return fenced.ReplaceAllString(string(data), "")
}

// brokenLink tells why a link of doc leads nowhere, "" when it leads somewhere or
// out of the tree.
func brokenLink(t *testing.T, doc, to string) string {
	file, heading, within := strings.Cut(to, "#")
	if strings.Contains(file, ":") {
		return ""
	}
	at := doc
	if file != "" {
		at = filepath.Join(filepath.Dir(doc), file)
	}
	if _, err := os.Stat(at); err != nil {
		return "no such file"
	}
	if !within || !strings.HasSuffix(at, ".md") {
		return ""
	}
	for line := range strings.Lines(readDoc(t, at)) {
		if title := strings.TrimLeft(line, "#"); title != line && anchor(title) == heading {
			return ""
		}
	}
	return "no such heading"
}

// anchor is what a heading is called in links, as code hosts call it.
func anchor(title string) string {
	title = strings.ToLower(strings.TrimSpace(title))
	return strings.ReplaceAll(notInAnchor.ReplaceAllString(title, ""), " ", "-")
}

var (
	notInAnchor = regexp.MustCompile(`[^\p{L}\p{N} _-]`)

	linked = regexp.MustCompile(`\]\(([^)]+)\)`)
	fenced = regexp.MustCompile("(?s)```.*?```")
	ticked = regexp.MustCompile("`([^`]+)`")

	aFile = regexp.MustCompile(`^[\w*][\w./*-]*(/|\.(go|md|sh|txt|txtar|yaml|service))$|^[\w-]+(/[\w.*-]+)+$`)
	aName = regexp.MustCompile(`^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$`)
	word  = regexp.MustCompile(`\w+`)
)

// tree is what guides may name.
type tree struct {
	// files are paths, whole and by their ends, and those of directories.
	files map[string]bool
	// names are what is declared anywhere, the fields of configuration files and
	// what code has between quotes; members the same by the name of the package.
	names   map[string]bool
	members map[string]map[string]bool
	targets map[string]bool // of make
}

func readTree(t *testing.T) tree {
	tr := tree{map[string]bool{}, map[string]bool{}, map[string]map[string]bool{}, map[string]bool{}}
	for _, file := range tracked(t, ".") {
		for p := file; p != "."; p = path.Dir(p) {
			for end := p; ; {
				tr.files[end] = true
				_, rest, more := strings.Cut(end, "/")
				if !more {
					break
				}
				end = rest
			}
		}
	}
	files(t, func(_ string, f *ast.File) {
		of := tr.members[f.Name.Name]
		if of == nil {
			of = map[string]bool{}
			tr.members[f.Name.Name] = of
		}
		for name := range declared(f) {
			of[name], tr.names[name] = true, true
		}
	})
	makefile, err := os.ReadFile("../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`(?m)^([\w-]+):`).FindAllStringSubmatch(string(makefile), -1) {
		tr.targets[m[1]] = true
	}
	return tr
}

// declared are the names that a file makes.
func declared(f *ast.File) map[string]bool {
	out := map[string]bool{}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			out[n.Name.Name] = true
		case *ast.TypeSpec:
			out[n.Name.Name] = true
		case *ast.ValueSpec:
			for _, name := range n.Names {
				out[name.Name] = true
			}
		case *ast.Field:
			for _, name := range n.Names {
				out[name.Name] = true
			}
			if n.Tag != nil {
				tag, _ := strconv.Unquote(n.Tag.Value)
				name, _, _ := strings.Cut(reflect.StructTag(tag).Get("json"), ",")
				out[name] = true
			}
		case *ast.BasicLit:
			if text, err := strconv.Unquote(n.Value); err == nil {
				out[text] = true
			}
		}
		return true
	})
	return out
}

// lacks tells what of a text between backticks does not exist, "" when all does
// or it is neither a command, a file nor a name.
func (tr tree) lacks(text string) string {
	name := text
	if i := strings.IndexAny(text, "(["); i > 0 {
		name = text[:i]
	}
	switch {
	case strings.HasPrefix(text, "make "), strings.HasPrefix(text, "go test "):
		return tr.lacksOfCommand(strings.Fields(text))
	case aFile.MatchString(text):
		return tr.lacksFile(strings.TrimSuffix(text, "/"))
	case aName.MatchString(name):
		return tr.lacksName(strings.Split(name, "."))
	}
	return ""
}

// lacksOfCommand looks at what make and go test are told to do.
func (tr tree) lacksOfCommand(args []string) string {
	if args[0] == "make" && !tr.targets[args[1]] {
		return "no target " + args[1]
	}
	for _, arg := range args {
		if dir, ok := strings.CutPrefix(arg, "./"); ok && !tr.files[dir] {
			return "no directory " + dir
		}
		for _, name := range word.FindAllString(arg, -1) {
			if strings.HasPrefix(name, "Test") && !tr.names[name] {
				return "no test " + name
			}
		}
	}
	return ""
}

func (tr tree) lacksName(parts []string) string {
	known := tr.names
	if of := tr.members[parts[0]]; of != nil && len(parts) > 1 {
		parts, known = parts[1:], of
	}
	for _, part := range parts {
		if !known[part] {
			return "nothing is called " + part
		}
	}
	return ""
}

func (tr tree) lacksFile(name string) string {
	if tr.files[name] {
		return ""
	}
	for file := range tr.files {
		if ok, _ := path.Match(name, file); ok {
			return ""
		}
	}
	return "no such file"
}
