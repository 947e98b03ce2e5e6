package tests

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// tracked lists the tree's files that match a pattern of git's, new ones too.
func tracked(t *testing.T, pattern string) (paths []string) {
	t.Helper()
	out, err := exec.Command("git", "-C", "..", "ls-files", "--cached", "--others",
		"--exclude-standard", pattern).Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range strings.Fields(string(out)) {
		if _, err := os.Stat(filepath.Join("..", path)); err == nil { // not deleted in the working tree
			paths = append(paths, path)
		}
	}
	return paths
}

// files parses the product's sources, generated ones excepted.
func files(t *testing.T, visit func(path string, f *ast.File)) {
	t.Helper()
	set := token.NewFileSet()
	for _, path := range tracked(t, "*.go") {
		if strings.Contains(path, "zz_generated") {
			continue
		}
		f, err := parser.ParseFile(set, filepath.Join("..", path), nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		visit(path, f)
	}
}

func TestEachPackageSaysWhatItIs(t *testing.T) {
	docs, seen := map[string]int{}, map[string]bool{}
	files(t, func(path string, f *ast.File) {
		dir := filepath.Dir(path)
		if strings.HasSuffix(path, "_test.go") {
			return
		}
		seen[dir] = true
		if f.Doc != nil {
			docs[dir]++
		}
	})
	for dir := range seen {
		if docs[dir] != 1 {
			t.Errorf("%s has %d package comments, want one", dir, docs[dir])
		}
	}
}

// TestHouseRules: only main exits, contexts come from the caller, and nothing
// hides in init.
func TestHouseRules(t *testing.T) {
	files(t, func(path string, f *ast.File) {
		if strings.HasSuffix(path, "_test.go") || strings.HasPrefix(path, "tests/") || strings.HasPrefix(path, "hack/") {
			return
		}
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" && !strings.HasPrefix(path, "coordinator/") {
				t.Errorf("%s: func init hides order; call it from main or wire", path)
			}
		}
		ast.Inspect(f, func(n ast.Node) bool {
			call, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			x, ok := call.X.(*ast.Ident)
			if !ok {
				return true
			}
			switch name := x.Name + "." + call.Sel.Name; {
			case name == "context.TODO":
				t.Errorf("%s: context.TODO: take the caller's", path)
			case (name == "os.Exit" || name == "log.Fatal" || name == "log.Fatalf") && filepath.Base(path) != "main.go":
				t.Errorf("%s: %s: only main exits", path, name)
			}
			return true
		})
	})
}

// TestGoroutinesAreWaitedFor: a package that starts goroutines has its tests
// fail when one outlives them.
func TestGoroutinesAreWaitedFor(t *testing.T) {
	starts, tested, checked := map[string]bool{}, map[string]bool{}, map[string]bool{}
	files(t, func(path string, f *ast.File) {
		dir, isTest := filepath.Dir(path), strings.HasSuffix(path, "_test.go")
		tested[dir] = tested[dir] || isTest
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				starts[dir] = starts[dir] || !isTest
			case *ast.SelectorExpr:
				x, ok := n.X.(*ast.Ident)
				checked[dir] = checked[dir] || ok && x.Name == "leak"
				starts[dir] = starts[dir] || !isTest && n.Sel.Name == "Go" // of a wait group
			}
			return true
		})
	})
	for dir, does := range starts {
		if does && tested[dir] && !checked[dir] && !strings.HasPrefix(dir, "tests/") {
			t.Errorf("%s starts goroutines: have its TestMain call leak.Check (tests/leak)", dir)
		}
	}
}

// TestNoReplace: what a user builds is what the modules say.
func TestNoReplace(t *testing.T) {
	data, err := os.ReadFile("../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		if strings.HasPrefix(strings.TrimSpace(line), "replace") {
			t.Errorf("go.mod: %s", strings.TrimSpace(line))
		}
		if strings.Contains(line, "k8s.io/kubernetes ") {
			t.Errorf("go.mod requires k8s.io/kubernetes, which only test rigs may")
		}
	}
}

// TestClientsShareVersions: kubectl and helm are built with the product's modules,
// so that a machine compiles these once, and the client is as old as the server.
func TestClientsShareVersions(t *testing.T) {
	product, clients := required(t, ".."), required(t, "clients")
	shared := 0
	for module, version := range clients {
		ours, ok := product[module]
		if ok && ours != version {
			t.Errorf("tests/clients/go.mod: %s %s, the product has %s (go mod edit -require=%s@%s)", module,
				version, ours, module, ours)
		}
		if ok {
			shared++
		}
	}
	if shared == 0 {
		t.Error("the two modules share nothing: the rule is not looked at")
	}
}

// required are the modules that the go.mod of a directory asks for.
func required(t *testing.T, dir string) map[string]string {
	t.Helper()
	c := exec.Command("go", "mod", "edit", "-json")
	c.Dir = dir
	text, err := c.Output()
	if err != nil {
		t.Fatal(err)
	}
	var mod struct {
		Require []struct{ Path, Version string }
	}
	if err := json.Unmarshal(text, &mod); err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, r := range mod.Require {
		out[r.Path] = r.Version
	}
	return out
}
