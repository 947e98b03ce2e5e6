// Package resourcequota counts what each ResourceQuota's namespace uses and
// writes it to the quota's status, which admission charges. It watches a
// resource only while some quota is about it.
package resourcequota
