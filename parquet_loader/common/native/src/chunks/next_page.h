/* Begins the pages of a column chunk. */
#ifndef NEXT_PAGE_H
#define NEXT_PAGE_H

#include "column.h"

/* Reads the next page, which may be the dictionary, up to its values. OTHER: something in it does not add up. */
int next_page(RowGroup *group, Column *column);

#endif
