/* The page around the picture of a plan: HTML, styles and script, with <!--@marks--> where something goes in. */
#ifndef RAVEL_REPORT_PAGE_H
#define RAVEL_REPORT_PAGE_H

extern const char ravel__page[];

#endif
