package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
)

// warnings are the texts of a response's warnings.
func warnings(h http.Header) []string {
	var out []string
	headers, _ := utilnet.ParseWarningHeaders(h.Values("Warning")) // what is none is left out
	for _, w := range headers {
		out = append(out, w.Text)
	}
	slices.Sort(out)
	return out
}

// difference is one between two JSON values.
type difference struct{ path, text string }

// differ compares two JSON values. Paths have no indices.
func differ(path string, up, here any) []difference {
	if up == nil && here == nil || same(up, here) {
		return nil
	}
	switch u := up.(type) {
	case map[string]any:
		h, ok := here.(map[string]any)
		if !ok {
			break
		}
		keys := map[string]bool{}
		for k := range u {
			keys[k] = true
		}
		for k := range h {
			keys[k] = true
		}
		var out []difference
		for _, k := range slices.Sorted(maps.Keys(keys)) {
			uv, inU := u[k]
			hv, inH := h[k]
			p := strings.TrimPrefix(path+"."+k, ".")
			switch {
			case !inU:
				out = append(out, difference{p, "absent upstream, here " + brief(hv)})
			case !inH:
				out = append(out, difference{p, "absent here, upstream " + brief(uv)})
			default:
				out = append(out, differ(p, uv, hv)...)
			}
		}
		return out
	case []any:
		h, ok := here.([]any)
		if !ok {
			break
		}
		if len(u) != len(h) {
			return []difference{{path + "[]", fmt.Sprintf("upstream alone %s, here alone %s", brief(without(u, h)),
				brief(without(h, u)))}}
		}
		var out []difference
		for i := range u {
			out = append(out, differ(path+"[]", u[i], h[i])...)
		}
		return out
	}
	return []difference{{path, fmt.Sprintf("upstream %s, here %s", brief(up), brief(here))}}
}

// without are the elements of a list that are not in another.
func without(list, other []any) []any {
	there := map[string]bool{}
	for _, v := range other {
		there[clean(string(encode(v)))] = true
	}
	return slices.DeleteFunc(slices.Clone(list), func(v any) bool { return there[clean(string(encode(v)))] })
}

var (
	tokenVolume = regexp.MustCompile(`kube-api-access-[a-z0-9]{5}`)
	uuid        = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)
	clock       = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`)
	service     = regexp.MustCompile(`\b10\.96\.\d+\.\d+\b`)
	port        = regexp.MustCompile(`\b3[0-2]\d{3}\b`)
	address     = regexp.MustCompile(`127\.0\.0\.1:\d+`)
	quoted      = regexp.MustCompile(`"(\\.|[^"\\])*"`)
	digits      = regexp.MustCompile(`\d+`)
	index       = regexp.MustCompile(`\[[^\]]*\]`)
	goValue     = regexp.MustCompile(`(?s)(Invalid|Unsupported) value: "?[{\[].*[}\]]"?: `)
	forbidden   = regexp.MustCompile(`(?s)(Forbidden: [^\n]*)\n.*`)
	version     = regexp.MustCompile(`(parsing "|in the precondition \(|in record \(|resourceVersion:|in object meta: )\d+|(hash=|X509SHA256=)[0-9A-Fa-f]+`)
	supported   = regexp.MustCompile(`supported values: ("[^"]*", )+"[^"]*"`)
	binding     = regexp.MustCompile(`allowed by (Cluster)?RoleBinding "[^"]*" of (Cluster)?Role "[^"]*"` +
		` to (User|Group|ServiceAccount) "[^"]*"`)
	age         = regexp.MustCompile(`^((\d+[smhdy])+|<unknown>|<invalid>)$`)
	elements    = regexp.MustCompile(`/(\d+|-)\b`)
	podTemplate = regexp.MustCompile(`^(spec\.jobTemplate\.spec\.template|spec\.template|template)\.spec\b`)
)

// clean leaves out of a text what each server makes itself.
func clean(s string) string {
	// Values of Go structs are printed in another form, those of patches have each
	// server's versions, and what follows a line break is a difference of two.
	s = goValue.ReplaceAllString(s, "$1 value: {…}: ")
	s = forbidden.ReplaceAllString(s, "$1")
	// What is wrong with an applied object is told in the order of a map.
	if strings.HasPrefix(s, "failed to create typed patch object ") {
		lines := strings.Split(s, "\n")
		slices.Sort(lines[1:])
		s = strings.Join(lines, "\n")
	}
	// Values that are supported come in the order of a map, for some fields.
	s = supported.ReplaceAllStringFunc(s, func(list string) string {
		values := strings.Split(strings.TrimPrefix(list, "supported values: "), ", ")
		slices.Sort(values)
		return "supported values: " + strings.Join(values, ", ")
	})
	// Which of several bindings allows something is chance, upstream.
	s = binding.ReplaceAllString(s, "allowed by BINDING")
	s = tokenVolume.ReplaceAllString(s, "kube-api-access")
	s = uuid.ReplaceAllString(s, "UUID")
	s = version.ReplaceAllString(s, "${1}${2}VERSION")
	s = clock.ReplaceAllString(s, "TIME")
	s = service.ReplaceAllString(s, "CLUSTERIP")
	s = address.ReplaceAllString(s, "SERVER")
	return port.ReplaceAllString(s, "NODEPORT")
}

// same tells whether two values that are no objects or lists mean the same.
func same(up, here any) bool {
	switch u := up.(type) {
	case string:
		h, ok := here.(string)
		return ok && (u == h || clean(u) == clean(h) || age.MatchString(u) && age.MatchString(h))
	case float64:
		h, ok := here.(float64)
		return ok && (u == h || nodePort(u) && nodePort(h))
	case bool:
		h, ok := here.(bool)
		return ok && u == h
	}
	return false
}

// nodePort tells whether a number may be a port that a server has chosen. In a dry
// run upstream chooses the ones that follow its range, 32768 and so on.
func nodePort(n float64) bool { return n >= 30000 && n < 33000 }

// brief is a short text for a value.
func brief(v any) string {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	s := clean(string(data))
	if len(s) > 60 {
		s = s[:60] + "…"
	}
	return s
}

// general brings a text of an error down to its form.
func general(s string) string {
	s = quoted.ReplaceAllString(clean(s), `"_"`)
	s = digits.ReplaceAllString(s, "0")
	if len(s) > 160 {
		s = s[:160] + "…"
	}
	return strings.Join(strings.Fields(s), " ")
}

// place brings a field's path down to its form, and tells whether it is a pod's.
func place(kind, path string) (string, bool) {
	path = index.ReplaceAllString(path, "[]")
	if podTemplate.MatchString(path) {
		return podTemplate.ReplaceAllString(path, "{pod}"), true
	}
	if kind == "pods" && (path == "spec" || strings.HasPrefix(path, "spec.")) {
		return "{pod}" + strings.TrimPrefix(path, "spec"), true
	}
	return path, strings.HasPrefix(path, "metadata")
}

// finding is one difference between two answers. A shared one is told once for
// all kinds.
type finding struct {
	text   string
	shared bool
	detail string // with the values
}

// compare tells where two answers differ.
func compare(req request, up, here answer) []finding {
	var out []finding
	add := func(shared bool, format string, args ...any) {
		out = append(out, finding{text: fmt.Sprintf(format, args...), shared: shared})
	}
	if req.Kind == "services" && bytes.Contains(up.Body, []byte("The range of valid IPs is 10.98.0.0/24")) {
		add(false, "upstream's allocator looks for an address in the range of the seed alone")
		return out
	}
	switch {
	case here.Code == 0 && up.Code == 0: // a handler of each ended in a panic
		return out
	case here.Code == 0:
		add(true, "no answer here: %s", general(string(here.Body)))
		return out
	case up.Code == 0:
		add(true, "no answer upstream, here %d: %s", here.Code, general(string(up.Body)))
		return out
	}
	uStatus, uFailed := failure(up)
	hStatus, hFailed := failure(here)
	req.withoutMadeName(&uStatus)
	req.withoutMadeName(&hStatus)
	if uFailed != hFailed && req.patchesDifferent() {
		return out // what the patch is for is there on one side alone
	}
	if uFailed == hFailed { // a refusal comes before some warnings
		for _, w := range missing(up.Warnings, here.Warnings) {
			add(true, "warning missing here: %s", generalWarning(w))
		}
		for _, w := range missing(here.Warnings, up.Warnings) {
			add(true, "warning only here: %s", generalWarning(w))
		}
	}
	switch {
	case uFailed && !hFailed:
		for _, c := range causes(req, uStatus) {
			add(c.shared, "accepted here, upstream %d: %s", up.Code, c.text)
		}
	case hFailed && !uFailed:
		for _, c := range causes(req, hStatus) {
			add(c.shared, "refused here with %d, accepted upstream: %s", here.Code, c.text)
		}
	case uFailed && up.Code != here.Code:
		add(false, "code upstream %d, here %d: %s | %s", up.Code, here.Code, first(req, uStatus), first(req, hStatus))
	case uFailed:
		out = append(out, compareStatus(req, uStatus, hStatus)...)
	case up.Code != here.Code:
		add(false, "code upstream %d, here %d", up.Code, here.Code)
	default:
		out = append(out, compareObjects(req, up, here)...)
	}
	return out
}

func generalWarning(w string) string {
	path, text, found := strings.Cut(w, ": ")
	if !found || strings.Contains(path, " ") {
		return general(w)
	}
	p, _ := place("", path)
	return p + ": " + general(text)
}

func missing(all, from []string) []string {
	left := slices.Clone(from)
	var out []string
	for _, s := range all {
		i := slices.IndexFunc(left, func(l string) bool { return clean(l) == clean(s) })
		if i < 0 {
			out = append(out, s)
			continue
		}
		left = slices.Delete(left, i, i+1)
	}
	return out
}

// failure returns the Status of an answer that is an error.
func failure(a answer) (metav1.Status, bool) {
	if a.Code < 400 {
		return metav1.Status{}, false
	}
	var s metav1.Status
	if err := json.Unmarshal(a.Body, &s); err != nil || s.Kind != "Status" {
		return metav1.Status{Message: strings.TrimSpace(string(a.Body))}, true
	}
	return s, true
}

// withoutMadeName takes the name that a server has generated for an object out of what
// it says is wrong.
func (r request) withoutMadeName(s *metav1.Status) {
	var o struct {
		Metadata struct{ Name, GenerateName string }
	}
	if json.Unmarshal(r.Body, &o) != nil || o.Metadata.Name != "" || o.Metadata.GenerateName == "" ||
		s.Details == nil || !strings.HasPrefix(s.Details.Name, o.Metadata.GenerateName) {
		return
	}
	name := s.Details.Name
	quoted, clean := strings.Trim(strconv.Quote(name), `"`), o.Metadata.GenerateName+"NAME"
	without := strings.NewReplacer(name, clean, quoted, clean).Replace
	s.Message, s.Details.Name = without(s.Message), without(name)
	for i := range s.Details.Causes {
		s.Details.Causes[i].Message = without(s.Details.Causes[i].Message)
	}
}

func causes(req request, s metav1.Status) []finding {
	if s.Details == nil || len(s.Details.Causes) == 0 {
		return []finding{{text: string(s.Reason) + ": " + general(s.Message)}}
	}
	var out []finding
	for _, c := range s.Details.Causes {
		f := cause(req, c)
		if !slices.Contains(out, f) {
			out = append(out, f)
		}
	}
	return out
}

func cause(req request, c metav1.StatusCause) finding {
	p, shared := place(req.Kind, c.Field)
	return finding{text: fmt.Sprintf("%s: %s (%s)", p, general(c.Message), c.Type), shared: shared}
}

func first(req request, s metav1.Status) string { return causes(req, s)[0].text }

func compareStatus(req request, up, here metav1.Status) []finding {
	var out []finding
	if up.Reason != here.Reason {
		out = append(out, finding{text: fmt.Sprintf("reason upstream %q, here %q: %s", up.Reason, here.Reason,
			general(up.Message))})
	}
	texts := func(s metav1.Status) (out []string) {
		if s.Details != nil {
			for _, c := range s.Details.Causes {
				at := c.Field
				if p := index.ReplaceAllString(at, "[]"); ignored(req, p, true) { // lists differ in length
					at = p
				}
				out = append(out, string(c.Type)+"\x00"+at+"\x00"+c.Message)
			}
		}
		return out
	}
	u, h := texts(up), texts(here)
	back := func(s string) finding {
		parts := strings.Split(s, "\x00")
		return cause(req, metav1.StatusCause{Type: metav1.CauseType(parts[0]), Field: parts[1], Message: parts[2]})
	}
	lacks, more := missing(u, h), missing(h, u)
	for _, s := range lacks {
		f := back(s)
		f.text = "cause missing here: " + f.text
		out = append(out, f)
	}
	for _, s := range more {
		f := back(s)
		f.text = "cause only here: " + f.text
		out = append(out, f)
	}
	if len(out) > 0 {
		return out
	}
	um, hm := clean(up.Message), clean(here.Message)
	if slices.Equal(u, h) && slices.ContainsFunc(u, func(s string) bool { return strings.Contains(s, "[]") }) {
		um, hm = index.ReplaceAllString(um, "[]"), index.ReplaceAllString(hm, "[]")
	}
	if um != hm && len(u) > 1 {
		um, _, _ = strings.Cut(um, "is invalid")
		hm, _, _ = strings.Cut(hm, "is invalid")
		if um == hm {
			return orderOf(req, u, h)
		}
	}
	if um != hm {
		return []finding{{text: fmt.Sprintf("message upstream %q, here %q", general(um), general(hm))}}
	}
	if up.Details != nil && here.Details != nil {
		up.Details.Causes, here.Details.Causes = nil, nil // compared above
	}
	for _, d := range differ("details", asJSON(up.Details), asJSON(here.Details)) {
		out = append(out, finding{fmt.Sprintf("status %s: %s", d.path, general(d.text)), true, d.text})
	}
	return out
}

// orderOf tells where the order of the same causes differs first: by their places, or
// by their texts where the place is one. What is wrong with the entries of a map of
// labels comes in no order, and nothing differs where only what is shown of two
// objects does.
func orderOf(req request, up, here []string) []finding {
	up, here = slices.Clone(up), slices.Clone(here)
	unordered := sortMaps(up)
	unordered = sortMaps(here) || unordered
	for i := range min(len(up), len(here)) {
		u, h := strings.Split(up[i], "\x00"), strings.Split(here[i], "\x00")
		if clean(up[i]) == clean(here[i]) {
			continue
		}
		up, shared := place(req.Kind, u[1])
		here, both := place(req.Kind, h[1])
		if up == here {
			return []finding{{text: fmt.Sprintf("order of the causes at %s: upstream %q, here %q", up, general(u[2]),
				general(h[2])), shared: shared}}
		}
		return []finding{{text: fmt.Sprintf("order of the causes: upstream %s first, here %s", up, here),
			shared: shared && both}}
	}
	if unordered || slices.ContainsFunc(append(up, here...), func(s string) bool { return strings.Contains(s, "\n") }) {
		return nil // the difference of two objects, which clean has left out
	}
	return []finding{{text: "order of the causes in the message", shared: true}}
}

// mapField is a field that holds labels or annotations.
var mapField = regexp.MustCompile(`(labels|annotations|matchLabels|nodeSelector|spec\.selector)$`)

// sortMaps sorts causes beside each other that are of one map: servers look at its
// entries in no order. It tells whether there are any.
func sortMaps(causes []string) (found bool) {
	at := func(i int) string { return strings.Split(causes[i], "\x00")[1] }
	for i := 0; i < len(causes); {
		end := i + 1
		for end < len(causes) && at(end) == at(i) {
			end++
		}
		if end > i+1 && mapField.MatchString(at(i)) {
			slices.Sort(causes[i:end])
			found = true
		}
		i = end
	}
	return found
}

func asJSON(v any) any {
	var out any
	data, err := json.Marshal(v)
	if err != nil || json.Unmarshal(data, &out) != nil {
		return nil
	}
	return out
}

func compareObjects(req request, up, here answer) []finding {
	var u, h any
	if unmarshal(up.Body, &u) != nil || unmarshal(here.Body, &h) != nil {
		if clean(string(up.Body)) != clean(string(here.Body)) {
			return []finding{{text: "text upstream " + brief(string(up.Body)) + ", here " + brief(string(here.Body))}}
		}
		return nil
	}
	strip(u)
	strip(h)
	if req.What == "surface" {
		withoutOwn(h)
	}
	if uk, hk := kindOf(u), kindOf(h); uk != hk {
		if uk != "Status" {
			uk = "the object"
		}
		if hk != "Status" {
			hk = "the object"
		}
		return []finding{{text: fmt.Sprintf("answer to %s: upstream %s, here %s", req.What, uk, hk), shared: true}}
	}
	if strings.HasPrefix(req.Kind, "/openapi") {
		return compareDocuments(req, u, h)
	}
	if req.What == "surface" && req.Kind == "/" {
		return comparePaths(u, h)
	}
	status := strings.Contains(req.What, "status") || req.What == "create"
	var out []finding
	seen := map[string]bool{}
	for _, d := range differ("", u, h) {
		if ignored(req, d.path, status) || seen[d.path] {
			continue
		}
		seen[d.path] = true
		p, shared := place(req.Kind, d.path)
		if how, field, ok := ownedField(d.path); ok {
			field, shared = place(req.Kind, field)
			p = "managed fields by " + how + ": " + field
		}
		out = append(out, finding{"object " + p + ": " + general(d.text), shared, d.text})
	}
	return out
}

// unmarshal reads an object; the names of token volumes stand in keys too.
func unmarshal(data []byte, into *any) error {
	return json.Unmarshal(tokenVolume.ReplaceAllLiteral(data, []byte("kube-api-access")), into)
}

// withoutOwn leaves out of discovery the API that the coordinator serves itself
// and upstream leaves to an extension.
func withoutOwn(v any) {
	o, _ := v.(map[string]any)
	own := func(e any) bool { return bytes.Contains(encode(e), []byte("metrics.k8s.io")) }
	for _, k := range []string{"paths", "groups", "items"} {
		if list, ok := o[k].([]any); ok {
			o[k] = slices.DeleteFunc(list, own)
		}
	}
	for _, k := range []string{"paths", "definitions"} { // of an OpenAPI document
		if named, ok := o[k].(map[string]any); ok {
			maps.DeleteFunc(named, func(name string, _ any) bool {
				return strings.Contains(name, "apis/metrics.k8s.io") || strings.HasPrefix(name, "io.k8s.metrics.pkg.apis.")
			})
		}
	}
}

// ofOwnAPI tells whether a rule is of the API that the coordinator serves itself:
// a group that upstream leaves to an extension, or paths of the product's own.
func ofOwnAPI(rule any) bool {
	r, _ := rule.(map[string]any)
	if groups, _ := r["apiGroups"].([]any); len(groups) > 0 {
		return len(groups) == 1 && groups[0] == "metrics.k8s.io"
	}
	urls, _ := r["nonResourceURLs"].([]any)
	return len(urls) > 0 && !slices.ContainsFunc(urls, func(u any) bool {
		path, _ := u.(string)
		return !strings.HasPrefix(path, "/shoal/")
	})
}

func kindOf(v any) string {
	o, _ := v.(map[string]any)
	kind, _ := o["kind"].(string)
	return kind
}

// comparePaths compares what servers list as their paths: each is a cause of its own.
func comparePaths(up, here any) []finding {
	listed := func(v any) map[string]bool {
		o, _ := v.(map[string]any)
		list, _ := o["paths"].([]any)
		out := map[string]bool{}
		for _, p := range list {
			out[fmt.Sprint(p)] = true
		}
		return out
	}
	u, h := listed(up), listed(here)
	var out []finding
	for _, p := range slices.Sorted(maps.Keys(u)) {
		if !h[p] {
			out = append(out, finding{text: "path missing here: " + p})
		}
	}
	for _, p := range slices.Sorted(maps.Keys(h)) {
		if !u[p] {
			out = append(out, finding{text: "path only here: " + p})
		}
	}
	return out
}

// compareDocuments compares OpenAPI documents: what differs in the same way at
// many places of them is one cause.
func compareDocuments(req request, up, here any) []finding {
	document := "OpenAPI v2"
	if strings.HasPrefix(req.Kind, "/openapi/v3") {
		document = "OpenAPI v3"
	}
	var out []finding
	seen := map[string]bool{}
	for _, d := range differ("", up, here) {
		parts := strings.Split(d.path, ".")
		short := d.path
		if len(parts) > 3 {
			short = parts[0] + "…" + strings.Join(parts[len(parts)-2:], ".")
		}
		text := document + " " + short + ": " + general(strings.SplitN(d.text, " ", 3)[0]+" "+strings.SplitN(d.text,
			" ", 3)[1])
		if !seen[text] {
			seen[text] = true
			out = append(out, finding{text, true, d.path + ": " + d.text})
		}
	}
	return out
}

// ignored tells whether a difference is one of the stored objects already, or of
// a status that a request does not touch.
func ignored(req request, path string, status bool) bool {
	if !status && (path == "status" || strings.HasPrefix(path, "status.")) {
		return true
	}
	within := func(path, of string) bool {
		return path == of || strings.HasPrefix(path, of+".") || strings.HasPrefix(path, of+"[")
	}
	_, field, owned := ownedField(path)
	field = index.ReplaceAllString(field, "[]")
	for p := range req.ignore {
		// Who has set what differs owns it, or all of a list that it is in.
		if within(path, p) || owned && (within(field, p) || within(p, field)) {
			return true
		}
	}
	return false
}

// managedKey is where the fields are that ownedFields returns.
const managedKey = "metadata.managedFields."

// ownedFields are the fields that the rig owns, in no order: "HOW: FIELD". Controllers
// of the coordinator own some too.
func ownedFields(managed []any) map[string]any {
	out := map[string]any{}
	for _, m := range managed {
		entry, _ := m.(map[string]any)
		manager, _ := entry["manager"].(string)
		if !strings.HasPrefix(manager, "apidiff") {
			continue
		}
		how := fmt.Sprint(entry["operation"])
		if sub, _ := entry["subresource"].(string); sub != "" {
			how += " of " + sub
		}
		if manager != "apidiff" {
			how += " as " + manager
		}
		how += " in " + fmt.Sprint(entry["apiVersion"])
		fields, _ := entry["fieldsV1"].(map[string]any)
		eachField("", fields, func(path string) { out[how+": "+clean(path)] = true })
	}
	return out
}

// eachField names the fields of a set: "spec.containers[{"name":"a"}].image".
func eachField(path string, set map[string]any, found func(string)) {
	for key, v := range set {
		at := path
		switch name, isField := strings.CutPrefix(key, "f:"); {
		case isField:
			at = strings.TrimPrefix(path+"."+name, ".")
		case key != ".": // k:, v: or i: is an element
			at = path + "[" + strings.NewReplacer("[", "(", "]", ")").Replace(key[min(2, len(key)):]) + "]"
		}
		inner, _ := v.(map[string]any)
		if len(inner) == 0 {
			found(at)
		}
		eachField(at, inner, found)
	}
}

// ownedField tells of the path of a difference who owns which field, if it is of
// managed fields.
func ownedField(path string) (how, field string, ok bool) {
	rest, ok := strings.CutPrefix(path, managedKey)
	if !ok {
		return "", "", false
	}
	return strings.Cut(rest, ": ")
}

// patchesDifferent tells whether a JSON patch is for a place where the stored objects
// differ already, so that it may be there on one side alone.
func (r request) patchesDifferent() bool {
	var ops []struct{ Path string }
	if !strings.HasPrefix(r.What, "JSON patch") || json.Unmarshal(r.Body, &ops) != nil || len(ops) == 0 {
		return false
	}
	at := elements.ReplaceAllString(ops[0].Path, "") + "/"
	for p := range r.ignore {
		if strings.HasPrefix(at, "/"+strings.NewReplacer(".", "/", "[]", "").Replace(p)+"/") {
			return true
		}
	}
	return false
}

// strip leaves out what each server makes itself.
func strip(v any) {
	o, _ := v.(map[string]any)
	if items, ok := o["items"].([]any); ok {
		for _, i := range items {
			strip(i)
		}
	}
	m, _ := o["metadata"].(map[string]any)
	for _, k := range []string{"uid", "resourceVersion", "continue"} {
		delete(m, k)
	}
	if g, _ := m["generateName"].(string); g != "" {
		if n, _ := m["name"].(string); strings.HasPrefix(n, g) {
			m["name"] = g
		}
	}
	if t, _ := m["creationTimestamp"].(string); t != "" {
		if _, err := time.Parse(time.RFC3339, t); err == nil {
			m["creationTimestamp"] = "TIME"
		}
	}
	if m != nil {
		managed, _ := m["managedFields"].([]any)
		m["managedFields"] = ownedFields(managed)
	}
	keys, _ := o["keys"].([]any) // that tokens are signed with
	for _, k := range keys {
		if key, ok := k.(map[string]any); ok {
			delete(key, "kid")
			delete(key, "n")
			delete(key, "x")
			delete(key, "y")
		}
	}
	rows, _ := o["rows"].([]any)
	for _, r := range rows {
		if row, ok := r.(map[string]any); ok {
			delete(row, "object")
		}
	}
	status, _ := o["status"].(map[string]any)
	if status["token"] != nil { // a TokenRequest's
		status["token"] = "TOKEN"
	}
	for _, k := range []string{"resourceRules", "nonResourceRules"} { // in no order
		if rules, ok := status[k].([]any); ok {
			rules = slices.DeleteFunc(rules, ofOwnAPI)
			status[k] = rules
			slices.SortFunc(rules, func(a, b any) int { return bytes.Compare(encode(a), encode(b)) })
		}
	}
}
