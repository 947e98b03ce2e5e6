// Command conformance runs upstream's [Conformance] specs against a fresh
// cluster of the harness: it builds e2e.test of the same release in a copy of
// upstream's module, makes the images that the specs ask for, and records each
// spec's result in results.txt. With -labels it runs any others of the suite and
// records them in wide.txt. With -node it runs upstream's suite of nodes, e2e_node.test,
// on one node, and records it in node.txt.
package main
