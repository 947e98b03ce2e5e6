// Command apidiff asks upstream's kube-apiserver and a coordinator the same
// requests and tells where their answers differ. Both run on this machine, with
// the same keys. Requests are made from valid objects of every served kind
// (seeds.yaml): a field of the kind's Go type is dropped, emptied, made wrong or
// added, and the object is created, updated or patched, nearly always as a dry
// run. SEED and N decide which requests there are.
//
// A difference is brought down to its cause: values in texts and indices in
// paths are left out, and the fields of pods inside of templates are those of
// pods. Each distinct cause is printed once, with its smallest request. The file
// accepted.txt holds causes that are meant, each with a reason.
//
// Upstream's answers to the requests of one seed are recorded in
// upstream.jsonl.zst (-record). With -replay they stand in for upstream, and the
// causes in open.txt, which were there when it was recorded, are no failure.
package main
